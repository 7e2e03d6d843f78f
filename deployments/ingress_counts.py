"""What HAProxy counts: calls that came, refused ones included, and those that wait in it.

Gateways do not see either, so the demand of an overloaded service would look like its capacity.
"""

from __future__ import annotations

import csv
import io
import socket
from pathlib import Path

from deployments.haproxy_launcher import admin_socket
from pool.policy.autoscale.loads import Outside

CONFIG = "haproxy.cfg"
BACKEND = "http-"
ANSWER_S = 0.5
COMMAND = b"show stat -1 2 -1\n"
"""Of all proxies, the rows of backends."""


class IngressCounts:
    """Asks every HAProxy of a launcher's folder; None where none answers.

    Args:
        folder: its configuration lies there, or in a folder for each node below.
    """

    def __init__(self, folder: Path):
        self._folder = folder

    def __call__(self) -> Outside | None:
        found = []
        for config in [*self._folder.glob(CONFIG), *self._folder.glob(f"*/{CONFIG}")]:
            door = admin_socket(config)
            if door is not None:
                try:
                    found.append(counts_in(_answer(door)))
                except (OSError, ValueError, KeyError):  # one that is ending, or starting
                    continue
        return Outside(sum(each.arrived for each in found), sum(each.queued for each in found)) if found else None


def counts_in(table: str) -> Outside:
    """Of the gateways' backends, from HAProxy's statistics as CSV.

    Raises:
        KeyError, ValueError: it is no such table.
    """
    rows = csv.DictReader(io.StringIO(table.removeprefix("# ")))
    ours = [row for row in rows if row["pxname"].startswith(BACKEND) and row["svname"] == "BACKEND"]
    return Outside(sum(float(row["stot"] or 0) for row in ours), sum(float(row["qcur"] or 0) for row in ours))


def _answer(door: Path) -> str:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as line:
        line.settimeout(ANSWER_S)
        line.connect(str(door))
        line.sendall(COMMAND)
        parts = []
        while part := line.recv(65_536):
            parts.append(part)
    return b"".join(parts).decode()
