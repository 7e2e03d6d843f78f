"""What batches took lately, by their rows: the measurements behind a latency profile."""

from __future__ import annotations

from collections import deque

import numpy as np

from pool.policy.latency import BatchTime, size_class

KEPT = 256
"""Batches of one class of sizes that are remembered."""
LEAST_RUNS = 20
"""Below so many, a p99 says little more than that one batch was slow."""


class BatchTimes:
    """Batches of one kind of work, in classes of sizes that double; written by one thread, read by any."""

    def __init__(self) -> None:
        self._taken: dict[int, deque[tuple[int, float]]] = {}

    def observe(self, rows: int, took_ms: float) -> None:
        """A batch of ``rows`` took ``took_ms``."""
        taken = self._taken.get(size_class(rows))
        if taken is None:
            taken = self._taken[size_class(rows)] = deque(maxlen=KEPT)
        taken.append((rows, took_ms))

    def summary(self) -> tuple[BatchTime, ...]:
        """Of each class that was seen often enough: its mean rows, smallest class first."""
        found = []
        for _, kept in sorted(self._taken.copy().items()):
            batches = np.asarray(tuple(kept))
            if len(batches) < LEAST_RUNS:
                continue
            p50_ms, p99_ms = np.percentile(batches[:, 1], [50, 99]).tolist()
            found.append(BatchTime(round(float(batches[:, 0].mean())), p50_ms, p99_ms, len(batches)))
        return tuple(found)
