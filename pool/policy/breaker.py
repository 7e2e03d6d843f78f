"""The crash-loop breaker: a workload that crashes waits longer each time, and is parked when it goes on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from configs.pool_settings import BreakerSettings


@dataclass(frozen=True)
class Verdict:
    """Whether a workload may start.

    Attributes:
        until_s: when a wait ends; None for the others.
    """

    kind: Literal["start", "wait", "park"]
    reason: str = ""
    until_s: float | None = None


def judge(crashes_s: Sequence[float], now_s: float, settings: BreakerSettings) -> Verdict:
    """What may become of a workload that crashed at these times.

    Only crashes of the window count, so one that ran well for long starts afresh. The wait after crash n of
    the window is first_wait_s * 2 ** (n - 1), up to longest_wait_s.

    Args:
        crashes_s: monotonic seconds, in any order.
    """
    recent = [crash_s for crash_s in crashes_s if now_s - crash_s < settings.window_s]
    if not recent:
        return Verdict("start")
    if len(recent) >= settings.crashes:
        return Verdict("park", f"it crashed {len(recent)} times within {settings.window_s:g} s; a person must look")
    doublings = min(len(recent) - 1, 64)
    wait_s = min(settings.longest_wait_s, settings.first_wait_s * 2.0**doublings)
    until_s = max(recent) + wait_s
    if now_s < until_s:
        return Verdict(
            "wait", f"it crashed {len(recent)} times; the next start is {wait_s:g} s after the last", until_s
        )
    return Verdict("start")
