"""Stands in for HAProxy's binary: rewrites its configuration, leaves a guard behind, and becomes HAProxy.

Serve notices that HAProxy died after some seconds, and then replaces it together with the actor that
started it. Until then nobody would answer. So each HAProxy has a guard, a process that waits for its end: when
it is not a successor that ended it, the guard starts a stand-in on the same configuration at once. The
stand-in has another admin socket, so that Serve still misses its own HAProxy; the one Serve starts takes the
listening sockets over from the stand-in, or from one whose actor died without it.

The guard also ends what a signal has stopped, replicas and HAProxy alike (`deployments.stopped_replicas`): those
who wait for them are then served by others within a tenth of a second.

Serve knows HAProxy by its process id, which is why the launcher becomes it rather than watch it. This runs
at every start and reload, before anything of the project is imported: only the standard library is used.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from deployments.haproxy_config import BACKEND_PREFIX, Rules, rewritten
from deployments.stopped_replicas import LOOK_EVERY_S, StoppedWatch, listeners, listening, replica_ports

CURRENT, STAND_IN = "current.pid", "stand-in"
"""Files beside the configuration: which HAProxy is meant to run, and what belongs to the stand-in.
A guard whose HAProxy is no longer the current one does nothing."""
ROUTED = "routed.cfg"
"""The last configuration in which there were replicas."""
ROLES = "roles.json"
"""Beside the rules: whether it stands by, of each replica that has been told; see `deployments.ingress_roles`."""
WATCH_LOG = "watch.log"
"""Says what was ended, and why."""
LONGEST_S = 120.0
"""How long a stand-in serves at most: by then Serve has started another, or was told to stop."""
FAILED_START_S = 1.0
"""A stand-in that ends sooner may never have served."""
FAILED_STARTS = 3
"""After so many of them in a row the configuration is given up."""
RETRY_S = 0.1
ADMIN_SOCKET = re.compile(r"^( *stats socket )(\S+)", re.MULTILINE)
BIND = re.compile(r"^ *bind \S*:(\d+)", re.MULTILINE)


def main(rules_file: str, *arguments: str) -> None:
    """Does not return; raises `haproxy_config.Unexpected` when the configuration cannot be rewritten."""
    with suppress(PermissionError):  # the actor that starts it may have a lower rank (`deployments.first_steps`)
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    rules = Rules(**json.loads(Path(rules_file).read_text(encoding="utf-8")))
    words = list(arguments)
    if "-f" in words and "-c" not in words:
        config = Path(words[words.index("-f") + 1])
        words, is_reload = without_the_dead(words, config)
        handed_over = [] if is_reload else successor_of(config)
        text = rewritten(config.read_text(encoding="utf-8"), rules, standing_by(Path(rules_file).parent))
        text = with_routes(text, config.parent / ROUTED, bool(handed_over))
        config.write_text(text, encoding="utf-8")
        words += handed_over
        _write_pid(config.parent / CURRENT, os.getpid())
        leave_guard(config, text, rules)
    os.execv(rules.binary, [rules.binary, *words])


def standing_by(folder: Path) -> list[str]:
    """Ids of the replicas that the pool has told to stand by; none while nobody has told."""
    try:
        roles = json.loads((folder / ROLES).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return []
    return [replica for replica, stands_by in roles.items() if stands_by]


def with_routes(text: str, routed: Path, is_handed_over: bool) -> str:
    """The configuration, or the last one that had routes while it has none and they may still lead somewhere.

    An actor that Serve has just started knows of no replica, and would answer 404 in place of one that does; so would
    one whose controller comes back and has not found its replicas yet.
    """
    if f"\n{BACKEND_PREFIX}" in text:
        routed.write_text(text, encoding="utf-8")
    elif routed.is_file():
        before = routed.read_text(encoding="utf-8")
        if is_handed_over or listeners(replica_ports(before)):
            return before
    return text


def without_the_dead(words: list[str], config: Path) -> tuple[list[str], bool]:
    """The arguments, and whether HAProxy takes over from one that Serve started and that is alive.

    If the one that Serve names has died, there is nobody to get the sockets from, and HAProxy would give up.
    """
    if "-sf" not in words:
        return words, False
    began = words.index("-sf")  # Serve puts it last: the one that serves, others that finish what they have, the socket
    alive = is_haproxy(int(words[began + 1]), config)
    return (words if alive else words[:began]), alive


def successor_of(config: Path) -> list[str]:
    """Arguments with which HAProxy takes over from one that still holds the port; none when there is none."""
    folder = config.parent
    for pid_file, its_config in ((folder / f"{STAND_IN}.pid", stand_in_config(config)), (folder / CURRENT, config)):
        pid = _read_pid(pid_file)
        socket = admin_socket(its_config)
        if pid and socket and socket.exists() and is_haproxy(pid, its_config):
            return ["-sf", str(pid), "-x", str(socket)]
    return []


def is_haproxy(pid: int, config: Path) -> bool:
    """Whether this process is HAProxy on this configuration; its id may be somebody else's by now."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return False
    return words[0].endswith(b"haproxy") and str(config).encode() in words


def admin_socket(config: Path) -> Path | None:
    try:
        found = ADMIN_SOCKET.search(config.read_text(encoding="utf-8"))
    except OSError:
        return None
    return Path(found[2]) if found else None


def stand_in_config(config: Path) -> Path:
    return config.parent / f"{STAND_IN}.cfg"


def leave_guard(config: Path, text: str, rules: Rules) -> None:
    """Fork a guard of this process that is nobody's child; it stays in the session, by which it is found and ended."""
    guarded = os.getpid()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    if os.fork() == 0:
        # Ray ends the process group of an actor that is gone; guard and stand-in have to outlive Serve's.
        os.setpgid(0, 0)
        guard(guarded, config, text, rules)
    os._exit(0)


def guard(pid: int, config: Path, text: str, rules: Rules) -> None:
    """Wait for the end of a HAProxy and, while it is still the one meant to run, have stand-ins serve for it.

    They get the configuration that it had, ``text``: Serve may be writing another one over it.

    One that could not take its predecessor's place has ended, too, and the predecessor's guard is not responsible any
    more: as long as somebody else listens, this one waits for the end of that.
    """
    current = config.parent / CURRENT
    ports = {int(port) for port in BIND.findall(text)}
    watch = StoppedWatch(replica_ports(text), rules.stopped_ms / 1000, _logger(config))
    watch.add(pid)
    await_end(pid, None, watch.look)
    failed, end_s = 0, time.monotonic() + LONGEST_S
    while _read_pid(current) == pid and time.monotonic() < end_s and failed < FAILED_STARTS:
        if ports <= {port for port, _ in listening()}:
            time.sleep(RETRY_S)
            continue
        started_s = time.monotonic()
        stand_in = start_stand_in(config, text, rules.binary)
        watch.add(stand_in)
        if not await_end(stand_in, end_s - time.monotonic(), watch.look):
            os.kill(stand_in, signal.SIGUSR1)  # finish what it has, take nothing new
        os.waitpid(stand_in, 0)
        failed = failed + 1 if time.monotonic() - started_s < FAILED_START_S else 0


def start_stand_in(config: Path, text: str, binary: str) -> int:
    """Its process id."""
    ours = stand_in_config(config)
    ours.write_text(ADMIN_SOCKET.sub(rf"\g<1>{config.parent / STAND_IN}.s", text, count=1), encoding="utf-8")
    pid = os.posix_spawn(binary, [binary, "-db", "-f", str(ours)], dict(os.environ))
    _write_pid(config.parent / f"{STAND_IN}.pid", pid)
    return pid


def await_end(pid: int, timeout_s: float | None, look: Callable[[], None]) -> bool:
    """Whether the process ended in time; ``look`` is called every few milliseconds until then."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    end_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
    try:
        poll = select.poll()
        poll.register(handle, select.POLLIN)
        while not poll.poll(LOOK_EVERY_S * 1000):
            if time.monotonic() >= end_s:
                return False
            look()
        return True
    finally:
        os.close(handle)


def _logger(config: Path) -> Callable[[str], None]:
    """Writes lines to a file beside the configuration."""

    def tell(what: str) -> None:
        with (config.parent / WATCH_LOG).open("a", encoding="utf-8") as log:
            log.write(f"{time.strftime('%Y-%m-%d %H:%M:%S')} {what}\n")

    return tell


def _write_pid(file: Path, pid: int) -> None:
    """At once, so that nobody reads half of it."""
    draft = file.with_suffix(f".{os.getpid()}")
    draft.write_text(str(pid))
    draft.replace(file)


def _read_pid(file: Path) -> int | None:
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


if __name__ == "__main__":
    main(*sys.argv[1:])
