"""Times of single batches, drawn from what was measured of many."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from pool.policy.latency import LatencyProfile

Z99 = 2.3263478740408408
"""Standard deviations from the median to the 99th percentile of a normal distribution."""


class BatchDraws:
    """Log-normal batch times with the measured median and 99th percentile of each size.

    Attributes:
        p50_s, sigma: median in seconds and spread of the logarithm, float64 [R + 1] by rows; place 0 is not used.
        mean_s: [R + 1].
        per_s: rows a second of a replica that is never idle, at the size at which those are the most.
    """

    def __init__(self, profile: LatencyProfile, max_rows: int):
        found = [profile.latency(rows) for rows in range(1, max_rows + 1)]
        p50_ms = np.array([found[0].p50_ms, *(each.p50_ms for each in found)])
        p99_ms = np.array([found[0].p99_ms, *(each.p99_ms for each in found)])
        self.p50_s: NDArray[np.float64] = p50_ms / 1e3
        self.sigma: NDArray[np.float64] = np.log(p99_ms / p50_ms) / Z99
        self.mean_s: NDArray[np.float64] = self.p50_s * np.exp(self.sigma**2 / 2)
        rows = np.arange(1, max_rows + 1)
        self.per_s = float((rows / self.mean_s[1:]).max())

    def draw_s(self, rows: int, normal: float) -> float:
        """Time of one batch, from a standard normal number."""
        return float(self.p50_s[rows] * np.exp(self.sigma[rows] * normal))
