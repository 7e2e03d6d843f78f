"""What is measured of one running server."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.load import Load, Summary, best_rate, poisson, start

P99_MS = 50.0
PATIENT_P99_MS = 1_000.0
ANSWERED = 0.999


@dataclass(frozen=True)
class Plan:
    """How long and how finely to measure.

    Attributes:
        moderate_per_s: the fixed load at which latency is compared.
        step_s: of one load; fewer than ``step_requests`` requests last longer, to at most twice this.
        resolution: of the best rate.
    """

    moderate_per_s: float
    step_s: float
    step_requests: int
    resolution: float
    attempts: int
    repeats: int

    def seconds(self, rate: float) -> float:
        return min(max(self.step_s, self.step_requests / rate), 2 * self.step_s)


FULL = Plan(moderate_per_s=40, step_s=4.0, step_requests=400, resolution=0.05, attempts=2, repeats=3)
QUICK = Plan(moderate_per_s=40, step_s=1.0, step_requests=50, resolution=1.0, attempts=1, repeats=1)
NAIVE_PER_S = 8.0
"""Moderate for a chain that collapses at the load all others carry."""


def measure(port: int, requests: Sequence[bytes], plan: Plan, moderate_per_s: float) -> dict[str, Any]:
    """Best sustained rate and latency at the moderate load.

    A server that is over 50 ms at any load also gets its best rate at a p99 of a second, under ``patient_per_s``.
    """
    load = Load(port=port, requests=requests, times_s=poisson(1, 1, seed=0))
    asked = iter(range(1, 1_000_000))

    def at(rate: float) -> Summary:
        with start(load.at(poisson(rate, plan.seconds(rate), seed=next(asked)))) as run:
            return run.outcomes().summary()

    at(moderate_per_s)  # warm-up: connections, caches, batch shapes seen for the first time
    moderate = [at(moderate_per_s) for _ in range(plan.repeats)]
    found = _search(at, plan, moderate_per_s, P99_MS)
    figures = {"per_s": found.rate, "p50_ms": found.p50_ms, "p99_ms": found.p99_ms}
    if not found.rate:
        figures["patient_per_s"] = _search(at, plan, moderate_per_s, PATIENT_P99_MS).rate
    return figures | {
        "moderate_per_s": moderate_per_s,
        "moderate_p50_ms": statistics.median(each.p50_ms for each in moderate),
        "moderate_p99_ms": statistics.median(each.p99_ms for each in moderate),
        "moderate_answered": min(each.answered for each in moderate),
    }


def _search(at: Callable[[float], Summary], plan: Plan, begin: float, p99_ms: float):
    return best_rate(
        at,
        begin=begin,
        p99_ms=p99_ms,
        answered=ANSWERED,
        resolution=plan.resolution,
        attempts=plan.attempts,
        repeats=plan.repeats,
    )
