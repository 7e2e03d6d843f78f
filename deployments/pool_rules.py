"""What both ends of ``/v1/pool`` hold to: its place, names of workloads, and when a token is needed."""

from __future__ import annotations

import ipaddress
import re

from configs.errors import InvalidRequest
from pool.workload import WORKLOAD_NAME

PREFIX = "/v1/pool"


def checked_name(name: str) -> str:
    """Raises InvalidRequest when no workload can have the name."""
    if not re.fullmatch(WORKLOAD_NAME, name):
        raise InvalidRequest(f"name: {name!r:.100} does not match {WORKLOAD_NAME}", "name")
    return name


def is_loopback(host: str) -> bool:
    """Whether an address or name means this machine to every resolver; then no other machine gets there."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host.lower() == "localhost"
