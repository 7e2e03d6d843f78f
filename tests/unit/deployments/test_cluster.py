"""The record of a cluster: believed only as far as its processes bear it out."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from dataclasses import asdict, replace

import pytest

from configs.errors import Conflict, Unavailable
from configs.settings import build_settings
from deployments import cluster as module
from deployments import gates, processes
from deployments.cluster import Cluster, ClusterRecord, http_address, settings_digest

PYTHON = [sys.executable, "-c"]


@pytest.fixture
def cluster(tmp_path):
    made = Cluster(tmp_path)
    made.folders.run.mkdir()
    yield made
    made.stop()


def write(cluster: Cluster, record: ClusterRecord) -> None:
    cluster.folders.record.write_text(json.dumps(asdict(record)))


@pytest.fixture
def recorded(cluster):
    """A record whose session holds one sleeping process."""
    started_at_s = time.time()
    child = subprocess.Popen([*PYTHON, "import time; time.sleep(60)"], start_new_session=True)
    record = ClusterRecord(child.pid, started_at_s, processes.boot_id(), "a", "d", "h", "s")
    write(cluster, record)
    yield record
    child.kill()
    child.wait(30)


def test_stop_ends_the_recorded_session_and_forgets_it(cluster, recorded):
    assert [p.pid for p in cluster.members()] == [recorded.session]
    assert cluster.stop() == 1
    assert cluster.record() is None
    assert cluster.stop() == 0


def test_a_port_is_the_clusters_when_one_of_its_processes_listens_on_it(cluster, recorded):
    code = "import socket, time; s = socket.create_server(('127.0.0.1', 0)); "
    code += "print(s.getsockname()[1], flush=True); time.sleep(60)"
    with subprocess.Popen([*PYTHON, code], start_new_session=True, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        assert not cluster.holds(port)
        write(cluster, replace(recorded, session=server.pid))
        assert cluster.holds(port)
        assert not cluster.holds(port - 1)
        server.kill()


def test_a_record_from_before_a_reboot_names_nobody(cluster, recorded):
    write(cluster, replace(recorded, boot="another"))
    assert cluster.members() == []
    assert not cluster.is_alive()


def test_a_session_without_a_raylet_is_not_alive(cluster, recorded):
    assert not cluster.is_alive()


@pytest.mark.parametrize("content", ["", "{", '{"session": 1}', "[]"])
def test_an_unreadable_record_is_none(cluster, content):
    cluster.folders.record.write_text(content)
    assert cluster.record() is None
    assert cluster.stop() == 0


def test_of_two_commands_at_once_the_second_is_told_which_is_at_work(cluster):
    other = Cluster(cluster.folders.home)
    for command in ("down", "up"):
        said = rf"^`recpool {command}` \(process {os.getpid()}\) is at work in"
        with cluster.lock(command), pytest.raises(Conflict, match=said), other.lock("up"):
            pass
    with other.lock("down"):
        pass


def test_ending_a_cluster_leaves_no_gates_behind(cluster, monkeypatch, tmp_path):
    monkeypatch.setattr(gates, "SHARED_MEMORY", tmp_path)
    folder = gates.gate_folder(build_settings({"home": str(cluster.folders.home)}))
    (folder / "gpu-0.gate").write_bytes(b"")
    cluster.stop()
    assert not folder.exists()


def test_a_start_that_fails_says_what_ray_said_and_can_be_cleared_away(cluster, monkeypatch):
    code = "import subprocess, sys; print('no room for the store'); subprocess.Popen(['sleep', '60']); sys.exit(3)"
    monkeypatch.setattr(module, "_start_command", lambda *_: [*PYTHON, code])
    with pytest.raises(Unavailable, match="(?s)exit code 3.*no room for the store"):
        cluster.start(build_settings({"home": str(cluster.folders.home)}))
    assert cluster.stop() == 1


def test_a_start_whose_port_was_taken_meanwhile_is_tried_again_on_others(cluster, monkeypatch):
    tried = []

    def command(_folders, ports, _resources):
        tried.append(ports.dashboard)
        return [*PYTHON, f"import sys; sys.exit({int(ports.dashboard == taken)})"]

    monkeypatch.setattr(module, "_start_command", command)
    with socket.create_server(("127.0.0.1", 0)) as other:
        taken = other.getsockname()[1]
        first = replace(module.Ports.choose(), dashboard=taken)
        choices = iter([first, module.Ports.choose()])
        monkeypatch.setattr(module.Ports, "choose", lambda: next(choices))
        record = cluster.start(build_settings({"home": str(cluster.folders.home)}))
    assert tried[0] == taken != tried[1]
    assert record.dashboard == f"http://127.0.0.1:{tried[1]}"


def test_any_change_of_the_settings_changes_their_digest():
    one, two = build_settings({}), build_settings({"ranking": {"threads": 2}})
    assert settings_digest(one) == settings_digest(build_settings({}))
    assert settings_digest(one) != settings_digest(two)


def test_a_service_on_all_interfaces_is_called_by_the_loopback_one():
    assert http_address(build_settings({"serving": {"host": "0.0.0.0", "port": 81}})) == "http://127.0.0.1:81"
    assert http_address(build_settings({"serving": {"host": "10.0.0.5"}})) == "http://10.0.0.5:8000"
