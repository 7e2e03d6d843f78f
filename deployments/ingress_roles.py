"""Tells HAProxy which of the gateway's replicas stand by: in a file for its next start, and at once by its sockets.

The pool's controller decides and calls `Announcer`. A HAProxy that has just started may have read the file before it
was changed, so all are told again every second; a replica that HAProxy does not know yet is found in the file.
"""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from deployments.haproxy_config import Server, replicas
from deployments.haproxy_launcher import ROLES, STAND_IN, admin_socket
from features.files import write_atomically

log = logging.getLogger("recpool.pool")
CONFIG = "haproxy.cfg"
REPEAT_S = 1.0
ANSWER_S = 0.2
"""HAProxy answers within a millisecond, or is about to end."""
SERVES, STANDS_BY = 1, 0
"""Weights: all that serve are alike, and HAProxy gives nothing to what has none."""


class Announcer:
    """Called with every look at the pool; does something when a role has changed, and every second.

    Args:
        folder: of HAProxy's launcher; its configuration and sockets lie there, or in a folder for each node below.
    """

    def __init__(self, folder: Path, clock: Callable[[], float] = time.monotonic):
        self._folder, self._clock = folder, clock
        self._lock = threading.Lock()
        self._told: dict[str, bool] = {}
        self._told_s = float("-inf")

    def __call__(self, roles: Mapping[str, bool]) -> None:
        """Whether it stands by, of each replica by its id. Trouble is logged: serving goes on as it was.

        One that was told before and is not named any more is gone, and gets no call either: HAProxy would try it
        first, and wait before it tried the last that is left.
        """
        with self._lock:
            is_new = dict(roles) != self._told
            if not roles and not is_new or not is_new and self._clock() - self._told_s < REPEAT_S:
                return
            gone = dict.fromkeys(self._told.keys() - roles.keys(), True) if roles else {}
            try:
                self._tell({**gone, **roles}, is_new)
            except OSError as error:
                log.warning("HAProxy is not told who stands by: %s", error)
            self._told, self._told_s = dict(roles), self._clock()

    def _tell(self, roles: Mapping[str, bool], is_new: bool) -> None:
        if not self._folder.is_dir():
            return
        for config in self._configs():
            servers = replicas(config.read_text(encoding="utf-8"))
            commands = "; ".join(_commands(servers, roles))
            door = admin_socket(config)
            if commands and door is not None:
                with suppress(OSError):  # the file of one that has ended
                    _order(door, commands)
        if is_new:
            write_atomically(self._folder / ROLES, json.dumps(dict(roles)).encode())

    def _configs(self) -> Iterator[Path]:
        """Of HAProxy, and of what stands in for it."""
        for name in (CONFIG, f"{STAND_IN}.cfg"):
            yield from [*self._folder.glob(name), *self._folder.glob(f"*/{name}")]


def announcer(folder: str) -> Announcer:
    """What the controller makes by its name."""
    return Announcer(Path(folder))


def _commands(servers: list[Server], roles: Mapping[str, bool]) -> Iterator[str]:
    for stands_by, weight in ((False, SERVES), (True, STANDS_BY)):  # nobody stands by before another serves
        told = {replica for replica, role in roles.items() if role is stands_by}
        for server in servers:
            if server.is_of(told):
                yield f"set server {server.backend}/{server.name} weight {weight}"


def _order(door: Path, commands: str) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(ANSWER_S)
        line.connect(str(door))
        line.sendall(f"{commands}\n".encode())
        while line.recv(65_536):
            pass
