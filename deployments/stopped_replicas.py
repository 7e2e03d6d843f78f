"""Lets HAProxy know of replicas that die or that a signal has stopped, so that their calls go to others at once.

A process that dies is noticed by its connections, but the kernel closes those last (`deployments.hanging_up`). One that
is stopped keeps them open, and the kernel goes on to accept new ones for it: HAProxy would notice only when an answer
is late, after the longest deadline. The kernel knows at once, and says so in /proc. Nothing that serves is stopped on
purpose, so one that stays so is killed: its calls go to another replica, and Serve starts one in its place.

A guard of HAProxy looks (`deployments.haproxy_launcher`), which is why only the standard library is used. Who
listens where HAProxy's servers are is found in /proc, too; replicas of other nodes are left to their own.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass

from deployments.hanging_up import LISTENING, hang_up, tcp_sockets
from deployments.haproxy_config import BACKEND_PREFIX

LOOK_EVERY_S = 0.01
SEEK_EVERY_S = 1.0
"""Between two searches for a replica that was not found: it may not listen yet, or be on another node."""
STOPPED, EXITING = b"T", 0x4
"""State and flag in /proc/<pid>/stat (proc(5), linux/sched.h); one that a debugger holds is ``t``, and left alone."""
STATE, FLAGS = 0, 6
"""Fields behind the name."""
STAT_BYTES = 256
"""Both are among the first 100."""


@dataclass
class Watched:
    """A process, by handles that never mean another one. ``stopped_s``: since when it is; None while it is not."""

    pid: int
    stat: int
    handle: int
    stopped_s: float | None = None

    @classmethod
    def of(cls, pid: int) -> Watched:
        """Raises OSError when there is none."""
        handle = os.pidfd_open(pid)
        try:
            # Of its first thread: that of the whole process would be summed up over all of them at each look.
            return cls(pid, os.open(f"/proc/{pid}/task/{pid}/stat", os.O_RDONLY | os.O_CLOEXEC), handle)
        except OSError:
            os.close(handle)
            raise

    def look(self) -> tuple[bool, bool]:
        """Whether a signal has stopped it, and whether it is about to end. Raises OSError when it has."""
        fields = os.pread(self.stat, STAT_BYTES, 0).rpartition(b")")[2].split()
        return fields[STATE] == STOPPED, bool(int(fields[FLAGS]) & EXITING)

    def close(self) -> None:
        os.close(self.stat)
        os.close(self.handle)


class StoppedWatch:
    """Looks at replicas, and at whatever else is added.

    Args:
        ports: where the replicas listen.
        after_s: how long one must have been stopped; 0: nobody is looked at.
        tell: told whenever one is ended.
    """

    def __init__(
        self,
        ports: Iterable[int],
        after_s: float,
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.monotonic,
    ):
        self._ports, self._after_s, self._tell, self._clock = frozenset(ports), after_s, tell, clock
        self._replicas: dict[int, list[Watched]] = {}
        self._others: list[Watched] = []
        self._sought_s = float("-inf")

    def add(self, pid: int) -> None:
        """Look at this one, too; one that has ended is no error."""
        with suppress(OSError):
            self._others.append(Watched.of(pid))

    def look(self) -> None:
        """End those that have been stopped for long, hang up for those that die; takes some tens of microseconds."""
        if not self._after_s:
            return
        now_s = self._clock()
        if now_s - self._sought_s >= SEEK_EVERY_S:
            self._sought_s = now_s
            self._seek()
        for port, watched in self._replicas.items():
            self._replicas[port] = [each for each in watched if self._check(each, now_s, port)]
        self._others = [each for each in self._others if self._check(each, now_s)]

    def close(self) -> None:
        for each in [*self._others, *(each for watched in self._replicas.values() for each in watched)]:
            each.close()
        self._others, self._replicas = [], {}

    def _check(self, watched: Watched, now_s: float, port: int | None = None) -> bool:
        """Whether it has to be looked at again; ``port``: where those who wait for it are connected."""
        try:
            is_stopped, is_exiting = watched.look()
            if not is_stopped and not is_exiting:
                watched.stopped_s = None
                return True
            watched.stopped_s = now_s if watched.stopped_s is None else watched.stopped_s
            if not is_exiting and now_s - watched.stopped_s < self._after_s:
                return True
            if port is not None:
                hang_up(port)
            if not is_exiting:
                signal.pidfd_send_signal(watched.handle, signal.SIGKILL)
                self._tell(f"{watched.pid} was ended: a signal had stopped it {now_s - watched.stopped_s:.3f} s ago")
        except OSError:  # it has ended by itself
            pass
        watched.close()
        return False

    def _seek(self) -> None:
        missing = {port for port in self._ports if not self._replicas.get(port)}
        for port, pids in listeners(missing).items():
            self._replicas[port] = []
            for pid in pids:
                with suppress(OSError):
                    self._replicas[port].append(Watched.of(pid))


def replica_ports(config: str) -> frozenset[int]:
    """Where the replicas listen that HAProxy's configuration has; not Serve's own proxy, the last resort."""
    ports, section = set(), ""
    for line in config.splitlines():
        words = line.split()
        if line[:1].strip() and not line.startswith("#"):
            section = line.strip()
        if section.startswith(BACKEND_PREFIX) and words[:1] == ["server"] and words[-1] != "backup":
            ports.add(int(words[2].rpartition(":")[2]))
    return frozenset(ports)


def listeners(ports: Iterable[int]) -> dict[int, list[int]]:
    """Process ids by port, of those processes of this session that listen there."""
    wanted = set(ports)
    sockets = {f"socket:[{inode}]": port for port, inode in listening() if port in wanted}
    found: dict[int, list[int]] = {}
    for pid in _session() if sockets else ():
        for port in {sockets[name] for name in _open_files(pid) if name in sockets}:
            found.setdefault(port, []).append(pid)
    return found


def listening() -> Iterator[tuple[int, str]]:
    """Port and inode of each socket that listens on this machine."""
    return ((each.port, each.inode) for each in tcp_sockets() if each.state == LISTENING)


def _session() -> Iterator[int]:
    """Processes of this one's session but itself: `recpool up` starts all of a cluster's in one."""
    mine, session = os.getpid(), os.getsid(0)
    for name in os.listdir("/proc"):  # noqa: PTH208 - names are all that is wanted of some hundred processes
        with suppress(OSError, ValueError):
            pid = int(name)
            if pid != mine and os.getsid(pid) == session:
                yield pid


def _open_files(pid: int) -> Iterator[str]:
    folder = f"/proc/{pid}/fd"
    with suppress(OSError):
        for name in os.listdir(folder):  # noqa: PTH208
            with suppress(OSError):
                yield os.readlink(f"{folder}/{name}")  # noqa: PTH115
