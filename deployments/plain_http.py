"""Requests to the service and to Ray's dashboard, which speak HTTP without TLS."""

from __future__ import annotations

from functools import cache
from typing import Any

import httpx


def request(method: str, url: str, timeout_s: float, **more: Any) -> httpx.Response:
    """One request, over a connection of its own. Raises httpx.HTTPError."""
    return _client().request(method, url, timeout=timeout_s, **more)


@cache
def _client() -> httpx.Client:
    """One for all: each new one reads every certificate of the machine, which takes more CPU than a request."""
    # What is asked may have been killed since the last answer; a kept connection would tell so as an error.
    return httpx.Client(trust_env=False, limits=httpx.Limits(max_keepalive_connections=0))
