"""Finding and ending the processes of one cluster, by pid and never by name alone.

``recpool up`` starts Ray as the leader of a new session (setsid). Ray's daemons, its workers, Serve's
replicas and HAProxy stay in that session even when the parent that started them is gone, so the
session id finds every one of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import psutil

TERM_GRACE_S = 3.0
KILL_GRACE_S = 10.0
DAEMONS = ("raylet", "gcs_server", "haproxy")


def boot_id() -> str:
    """Changes at every boot, so that a session id from before one is not taken for a live one."""
    file = Path("/proc/sys/kernel/random/boot_id")
    return file.read_text().strip() if file.is_file() else str(int(psutil.boot_time()))


def session_members(session: int, since_s: float) -> list[psutil.Process]:
    """Live processes of a session that started at or after ``since_s`` (seconds since 1970)."""
    # Process start times are rounded to clock ticks; 1 s of slack does not reach another session.
    return [p for p in _live() if _session_of(p) == session and _started_at_s(p) >= since_s - 1]


def daemons_using(folder: Path) -> list[psutil.Process]:
    """Ray or HAProxy daemons whose command line names this folder: left over by a run without a record."""
    return [p for p in _live() if _is_daemon(p) and any(f"{folder}/" in word for word in _words(p))]


def listening_ports(process: psutil.Process) -> set[int]:
    """TCP ports a process listens on; none when it is gone."""
    with suppress(psutil.Error):
        return {c.laddr.port for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
    return set()


def end(processes: Sequence[psutil.Process]) -> list[psutil.Process]:
    """Ask each to end, then make it; returns those still alive after that."""
    for process in processes:
        _signal(process.terminate)
    _, alive = psutil.wait_procs(processes, TERM_GRACE_S)
    for process in alive:
        _signal(process.kill)
    _, alive = psutil.wait_procs(alive, KILL_GRACE_S)
    return [p for p in alive if _is_live(p)]


def _live() -> list[psutil.Process]:
    return [p for p in psutil.process_iter() if _is_live(p)]


def _is_live(process: psutil.Process) -> bool:
    """A zombie holds nothing but its pid: its parent has not fetched its exit status yet."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


def _session_of(process: psutil.Process) -> int | None:
    try:
        return os.getsid(process.pid)
    except OSError:
        return None


def _is_daemon(process: psutil.Process) -> bool:
    with suppress(psutil.Error):
        return process.name() in DAEMONS
    return False


def _words(process: psutil.Process) -> list[str]:
    with suppress(psutil.Error):
        return process.cmdline()
    return []


def _started_at_s(process: psutil.Process) -> float:
    with suppress(psutil.Error):
        return process.create_time()
    return 0.0


def _signal(send: Callable[[], None]) -> None:
    with suppress(psutil.NoSuchProcess):
        send()
