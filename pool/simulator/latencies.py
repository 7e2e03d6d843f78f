"""Latencies counted in bins that grow by 2%, so that those of ten thousand million requests take as little room as ten.

A quantile read from them is at most 1% off.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

LEAST_MS, GROWTH, BINS = 0.01, 1.02, 1_000
EDGES_MS: NDArray[np.float64] = (LEAST_MS * GROWTH ** np.arange(BINS)).astype(np.float64)
"""Lower edges: 0.01 ms to some hours."""
CENTRES_MS: NDArray[np.float64] = EDGES_MS * math.sqrt(GROWTH)


def bins_of(values_ms: NDArray[np.float64]) -> NDArray[np.int64]:
    """The bin of each value, [N]; what is below the first edge counts there."""
    with np.errstate(divide="ignore"):
        places = np.floor(np.log(values_ms / LEAST_MS) / math.log(GROWTH))
    return np.clip(places, 0, BINS - 1).astype(np.int64)


def counted(values_ms: NDArray[np.float64]) -> NDArray[np.float64]:
    """How many values fall into each bin, [BINS] float64."""
    return np.bincount(bins_of(values_ms), minlength=BINS).astype(np.float64)


def stretched(counts: NDArray[np.float64], factor: float, added_ms: float) -> NDArray[np.float64]:
    """The counts of the same requests, each of which takes ``factor`` times as long and ``added_ms`` more."""
    if factor == 1 and not added_ms:
        return counts
    return np.bincount(bins_of(CENTRES_MS * factor + added_ms), weights=counts, minlength=BINS).astype(np.float64)


def quantile_ms(counts: NDArray[np.float64], q: float) -> float:
    """NaN where nothing was counted."""
    total = counts.sum()
    if total <= 0:
        return math.nan
    place = int(np.searchsorted(np.cumsum(counts), q * total))
    return float(CENTRES_MS[min(place, BINS - 1)])


def above(counts: NDArray[np.float64], limit_ms: float) -> float:
    """How many took longer than the limit; of the limit's own bin a part."""
    place = int(bins_of(np.array([limit_ms]))[0])
    part = (EDGES_MS[place] * GROWTH - limit_ms) / (EDGES_MS[place] * (GROWTH - 1))
    return float(counts[place + 1 :].sum() + counts[place] * min(1.0, max(0.0, part)))
