"""Who listens where HAProxy's servers are, and what is done about one that a signal has stopped."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from deployments.stopped_replicas import SEEK_EVERY_S, StoppedWatch, Watched, listeners, replica_ports

AFTER_S = 0.0625
"""A whole number of binary fractions, so that a test's clock meets it exactly."""
LISTEN = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); "
LISTEN += "print(s.getsockname()[1], flush=True); time.sleep(60)"
CONFIG = """
defaults
    # server of no backend
backend default_backend
    http-request deny
backend http-recpool
    option httpchk
    # server commented 127.0.0.1:1 check
    server SERVE_REPLICA_one 127.0.0.1:30000 check maxconn 16 on-error mark-down
    server SERVE_REPLICA_two [::1]:30001 check
    server SERVE_PROXY 127.0.0.1:47887 check backup
listen stats
    bind 127.0.0.1:40133
"""


@dataclass
class Scene:
    """A process that listens, a clock that a test turns, and what was told."""

    process: subprocess.Popen[str]
    port: int
    now_s: float = 1_000.0
    told: list[str] = field(default_factory=list)

    def watch(self, after_s: float = AFTER_S, ports: set[int] | None = None) -> StoppedWatch:
        return StoppedWatch({self.port} if ports is None else ports, after_s, self.told.append, lambda: self.now_s)

    def look(self, watch: StoppedWatch, later_s: float = 0.0) -> None:
        self.now_s += later_s
        watch.look()

    def is_alive(self) -> bool:
        return self.process.poll() is None

    def is_killed(self) -> bool:
        return self.process.wait(10) == -signal.SIGKILL

    def stop(self) -> None:
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def go_on(self) -> None:
        self.process.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, self.process.pid, os.WCONTINUED)


@pytest.fixture
def scene() -> Iterator[Scene]:
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", LISTEN], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    yield Scene(process, int(process.stdout.readline()))
    process.kill()
    process.wait(10)
    process.stdout.close()


def test_the_ports_are_those_of_the_replicas_and_not_of_the_last_resort():
    assert replica_ports(CONFIG) == {30000, 30001}
    assert replica_ports("") == frozenset()


def test_who_listens_on_a_port_is_found_by_it(scene):
    assert listeners({scene.port}) == {scene.port: [scene.process.pid]}
    assert listeners(set()) == {}


def test_one_that_stays_stopped_is_ended_with_the_reason_and_one_that_runs_is_not(scene):
    watch = scene.watch()
    for _ in range(10):
        scene.look(watch, 1.0)
    assert scene.is_alive()
    scene.stop()
    scene.look(watch)
    scene.look(watch, AFTER_S - 0.001)
    assert scene.is_alive() and not scene.told
    scene.look(watch, 0.002)
    assert scene.is_killed()
    [said] = scene.told
    assert f"{scene.process.pid} was ended: a signal had stopped it" in said
    scene.look(watch, 5.0)
    assert len(scene.told) == 1


def test_one_that_goes_on_in_time_is_left_alone_however_often_it_is_stopped(scene):
    watch = scene.watch()
    for _ in range(3):
        scene.stop()
        scene.look(watch, 0.04)
        scene.go_on()
        scene.look(watch, 0.04)
    assert scene.is_alive() and not scene.told


def test_one_that_hung_together_with_its_watch_is_given_its_time(scene):
    """Neither saw the other run for long: the machine was asleep, or everything was stopped."""
    watch = scene.watch()
    scene.look(watch)
    scene.stop()
    scene.look(watch, 60.0)
    assert scene.is_alive()


def test_it_may_be_switched_off(scene):
    watch = scene.watch(after_s=0.0)
    scene.stop()
    for _ in range(3):
        scene.look(watch, 10.0)
    assert scene.is_alive()


def test_one_that_is_added_is_looked_at_whether_it_listens_or_not(scene):
    watch = scene.watch(ports=set())
    watch.add(scene.process.pid)
    scene.stop()
    scene.look(watch)
    scene.look(watch, AFTER_S)
    assert scene.is_killed()


def test_one_that_dies_by_itself_is_let_go_and_its_successor_on_the_port_is_found(scene):
    watch = scene.watch()
    scene.look(watch)
    scene.process.kill()
    scene.process.wait(10)
    scene.look(watch, 0.02)
    again = LISTEN.replace("('127.0.0.1', 0)", f"('127.0.0.1', {scene.port})")
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", again], stdout=subprocess.PIPE, text=True) as successor:
        assert successor.stdout is not None and successor.stdout.readline()
        successor.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, successor.pid, os.WSTOPPED)
        scene.look(watch, SEEK_EVERY_S)
        scene.look(watch, AFTER_S)
        assert successor.wait(10) == -signal.SIGKILL


@pytest.mark.parametrize(
    ("stat", "stopped", "exiting"),
    [
        ("7 (a b) T 1 7 7 0 -1 4194304", True, False),
        ("7 (a) t 1 7 7 0 -1 4194304", False, False),
        ("7 (a) S 1 7 7 0 -1 4194560", False, False),
        ("7 (a) T x) R 1 7 7 0 -1 4194564", False, True),
        ("7 (a) Z 1 7 7 0 -1 4227084", False, True),
    ],
)
def test_a_debugger_is_no_signal_and_a_name_no_state(tmp_path, stat, stopped, exiting):
    file = tmp_path / "stat"
    file.write_text(stat)
    watched = Watched(7, os.open(file, os.O_RDONLY), os.open(file, os.O_RDONLY))
    assert watched.look() == (stopped, exiting)
    watched.close()


@pytest.mark.skipif(os.geteuid() != 0, reason="the kernel lets only root close the sockets of others")
def test_callers_of_one_whose_death_takes_long_are_not_kept_waiting():
    """Here it takes that long because one of its threads does not end."""
    program = LISTEN.replace("time.sleep(60)", "import ctypes, sys, threading; ") + (
        "threading.Thread(target=time.sleep, args=[60], daemon=True).start(); "
        "sys.stdin.readline(); ctypes.CDLL(None).pthread_exit(None)"
    )
    with subprocess.Popen([sys.executable, "-I", "-S", "-c", program], stdin=-1, stdout=-1, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        port = int(process.stdout.readline())
        watch = StoppedWatch({port}, AFTER_S, pytest.fail)
        watch.look()
        with socket.create_connection(("127.0.0.1", port)) as caller:
            process.stdin.write("\n")
            process.stdin.flush()
            while not Watched.of(process.pid).look()[1]:
                time.sleep(0.01)
            watch.look()
            caller.settimeout(20)
            with pytest.raises(ConnectionResetError):
                caller.recv(1)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(("127.0.0.1", port))
        assert process.poll() is None
        process.kill()


def test_nothing_stays_open(scene):
    before = open_files()
    watch = scene.watch()
    watch.add(scene.process.pid)
    scene.look(watch)
    watch.close()
    scene.process.kill()
    scene.process.wait(10)
    watch = scene.watch()
    watch.add(scene.process.pid)
    scene.look(watch)
    assert open_files() == before


def open_files() -> set[str]:
    return {each.name for each in Path("/proc/self/fd").iterdir()}
