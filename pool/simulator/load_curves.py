"""How latency grows with load: what a group of replicas of one service does at rising rates.

Measured on the same queue that requests go through one by one in `events`, once for each group, and then read
thousands of times. It is also the `ServiceCurve` that an autoscaler plans with.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pool.policy.autoscale.signals import ServiceCurve
from pool.policy.latency import LatencyProfile
from pool.simulator.batch_draws import BatchDraws
from pool.simulator.latencies import BINS, counted, quantile_ms
from pool.simulator.queue_loop import batch_queue

PARTS = (0.01, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.75, 0.8, 0.85, 0.9, 0.93, 0.96, 0.98)
"""Of the most that a replica can do: the rates that are tried."""
REQUESTS = 20_000
SETTLED = 0.1
"""Share of the requests that comes before the queue is settled and is not counted."""
GROUPS = (1, 2, 4, 8, 16)
"""Replicas of a group. More than 16 hardly help each other any further."""


@dataclass(frozen=True)
class LoadCurve:
    """A group of replicas at rates of one of them.

    Attributes:
        per_s: requests a second of one replica, rising, [K].
        shares: of the requests in each bin of `latencies`, [K, BINS]; each row sums to 1.
        busy: share of its time that a replica computes, [K].
        most_per_s: of a replica that is never idle.
    """

    per_s: NDArray[np.float64]
    shares: NDArray[np.float64]
    busy: NDArray[np.float64]
    most_per_s: float

    def at(self, per_s: float) -> tuple[NDArray[np.float64], float]:
        """Shares [BINS] and busy share at a rate, between two of the curve's as a mixture of both."""
        above = int(np.clip(np.searchsorted(self.per_s, per_s), 1, len(self.per_s) - 1))
        low, high = self.per_s[above - 1], self.per_s[above]
        part = min(1.0, max(0.0, (per_s - low) / (high - low)))
        shares = self.shares[above - 1] * (1 - part) + self.shares[above] * part
        busy = self.busy[above - 1] * (1 - part) + self.busy[above] * part
        return shares, float(busy * per_s / low if per_s < low else busy)

    def service_curve(self, start_s: float, overhead_ms: float = 0.0) -> ServiceCurve:
        """For an autoscaler; latencies rise with the rate, as noise of the measurement is taken out."""
        p99_ms = np.maximum.accumulate([quantile_ms(row, 0.99) + overhead_ms for row in self.shares])
        return ServiceCurve(tuple(zip(self.per_s.tolist(), p99_ms.tolist(), strict=True)), start_s)


def group_of(replicas: int) -> int:
    """The largest of the groups that is not larger."""
    return max(each for each in GROUPS if each <= max(1, replicas))


def load_curve(profile: LatencyProfile, max_rows: int, replicas: int = 1, hold_s: float = 0.0) -> LoadCurve:
    """The curve of so many replicas of one service; made once for all that are alike.

    Args:
        replicas: one of `GROUPS`.
        hold_s: longest step of other work that an idle replica waits for.
    """
    return _made(profile.batch_rows, profile.p50_ms, profile.p99_ms, max_rows, replicas, hold_s)


@lru_cache(maxsize=512)
def _made(
    batch_rows: tuple[int, ...],
    p50_ms: tuple[float, ...],
    p99_ms: tuple[float, ...],
    max_rows: int,
    replicas: int,
    hold_s: float,
) -> LoadCurve:
    profile = LatencyProfile(batch_rows=batch_rows, p50_ms=p50_ms, p99_ms=p99_ms)
    draws, rng = BatchDraws(profile, max_rows), np.random.default_rng(replicas)
    gaps, normals, uniforms = rng.exponential(size=REQUESTS), rng.standard_normal(REQUESTS), rng.random(REQUESTS)
    per_s, skipped = draws.per_s * np.array(PARTS), int(REQUESTS * SETTLED)
    shares, busy = np.zeros((len(PARTS), BINS)), np.zeros(len(PARTS))
    for place, rate in enumerate(per_s):
        arrivals_s = np.cumsum(gaps) / (rate * replicas)
        found = batch_queue(arrivals_s, draws.p50_s, draws.sigma, replicas, hold_s, normals, uniforms)
        latency_s, busy_s, _ = found
        shares[place] = counted(latency_s[skipped:] * 1e3) / (REQUESTS - skipped)
        busy[place] = min(1.0, busy_s / (arrivals_s[-1] * replicas))
    return LoadCurve(per_s, shares, busy, draws.per_s)
