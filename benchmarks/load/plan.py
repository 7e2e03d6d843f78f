"""What to send, where and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np


@dataclass(frozen=True)
class Load:
    """What to send, where and when.

    Args:
        requests: whole HTTP requests as bytes (`post`, `get`), taken in turn.
        times_s: seconds after the start, ascending, shape [N].
        connections: most connections open at a time.
        timeout_s: counted from the scheduled time; a retry does not extend it.
        retry: send what got no answer, 502 or 503 once more, `retry_after_s` later.
        contains: bytes to look for in answers of status 200 (`Outcomes.found`).
    """

    port: int
    requests: Sequence[bytes]
    times_s: np.ndarray
    host: str = "127.0.0.1"
    connections: int = 512
    timeout_s: float = 10.0
    retry: bool = False
    retry_after_s: float = 0.0
    contains: bytes | None = None
    keep_bodies: bool = False

    def at(self, times_s: np.ndarray) -> Load:
        """The same load at other times."""
        return replace(self, times_s=times_s)


def poisson(rate: float, seconds: float, seed: int) -> np.ndarray:
    """Arrival times of independent callers: `rate` a second on average, for `seconds` seconds. float64 [N]."""
    rng = np.random.default_rng(seed)
    gaps = rng.exponential(1 / rate, size=int(rate * seconds + 10 * (rate * seconds) ** 0.5) + 10)
    times = np.cumsum(gaps)
    return times[times < seconds]


def constant(rate: float, seconds: float) -> np.ndarray:
    """Evenly spaced arrival times, the first at zero. float64 [N]."""
    return np.arange(int(rate * seconds)) / rate


def post(path: str, body: bytes, headers: dict[str, str] | None = None) -> bytes:
    """The bytes of a POST with a JSON body."""
    extra = {"Content-Type": "application/json", "Content-Length": str(len(body)), **(headers or {})}
    return _request("POST", path, extra) + body


def get(path: str, headers: dict[str, str] | None = None) -> bytes:
    return _request("GET", path, headers or {})


def _request(method: str, path: str, headers: dict[str, str]) -> bytes:
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", *(f"{k}: {v}" for k, v in headers.items())]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("ascii")
