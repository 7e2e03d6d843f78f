"""A rollout under load by its phases: when each began, and what callers noticed meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from benchmarks.live import Live
from benchmarks.load import Outcomes
from deployments.plain_http import request
from deployments.releases.views import ROLLOUT

POLL_S = 0.5
SETTLE_S = 20.0
"""Under load before anything counts: a service that has just come up answers more slowly."""
COLUMNS = ("stage", "seconds", "requests", "failed", "short", "p50_ms", "p99_ms")


@dataclass(frozen=True)
class Phase:
    """A stretch of a rollout, by time.monotonic()."""

    name: str
    began_s: float
    ended_s: float


@dataclass(frozen=True)
class Rolled:
    """One rollout: its end, and its phases."""

    view: dict[str, Any]
    phases: list[Phase]

    @property
    def exposed_s(self) -> float:
        """From the first moment at which users may have got the release."""
        began_s = [phase.began_s for phase in self.phases if phase.name.startswith(("shadow", "canary"))]
        return self.phases[-1].ended_s - began_s[0] if began_s else 0.0


@dataclass
class Watch:
    """Follows the rollout of a service.

    Attributes:
        version: the release that is rolled out; absent: the next one that is.
    """

    live: Live
    version: str | None = None
    _names: list[tuple[str, float]] = field(default_factory=list)

    def until_ended(self, deadline_s: float, goes_on: Callable[[], bool] = lambda: True) -> Rolled:
        """Follow it to its end. Raises RuntimeError when it does not come by then, or no longer can."""
        url = f"http://127.0.0.1:{self.live.port}{ROLLOUT}"
        while time.monotonic() < deadline_s and goes_on():
            time.sleep(POLL_S)
            reply = request("GET", url, 10.0)
            view = reply.json() if reply.status_code == 200 else {"phase": "none", "version": ""}
            if view["phase"] == "none" or (self.version or view["version"]) != view["version"]:
                continue
            self._enter(view["phase"] + (f" {view['share']:.0%}" if view["share"] is not None else ""))
            if view["ended"]:
                ends_s = [at for _, at in self._names[1:]]
                return Rolled(view, [Phase(*each, end) for each, end in zip(self._names[:-1], ends_s, strict=True)])
        raise RuntimeError(f"the rollout does not end: {self._names}")

    def _enter(self, name: str) -> None:
        if not self._names or self._names[-1][0] != name:
            self._names.append((name, time.monotonic()))


def noticed(outcomes: Outcomes, phase: Phase) -> dict[str, Any]:
    """What callers noticed between two moments; an answer is short that lacks what the load looks for."""
    at_s = outcomes.started_s + outcomes.scheduled_s
    part = outcomes.select((at_s >= phase.began_s) & (at_s < phase.ended_s))
    answered = part.latency_s[part.status == 200] * 1000
    p50, p99 = (float(np.percentile(answered, q)) if len(answered) else float("nan") for q in (50, 99))
    return {"stage": phase.name, "seconds": round(phase.ended_s - phase.began_s, 1), "requests": len(part.status),
            "failed": int((part.status != 200).sum()), "short": int(((part.status == 200) & ~part.found).sum()),
            "p50_ms": round(p50, 2), "p99_ms": round(p99, 2)}  # fmt: skip


def worst_p99_ms(stages: list[dict[str, Any]]) -> float:
    """Of the stages in which a release gets requests or comes to serve."""
    return max(row["p99_ms"] for row in stages if row["stage"].startswith(("shadow", "canary", "promote")))
