"""Sorting the rows of a batch."""

from __future__ import annotations

import numpy as np

from features.compiled import compiled

_PLACE = 0xFFFFFFFF


def falling(scores: np.ndarray) -> np.ndarray:
    """Places [B, n] int64 of scores [B, n] by falling value; equal ones keep their order.

    Scores count as float32 and must not be NaN. Score and place are sorted as one whole number: a plain
    sort of those is several times quicker than a stable `np.argsort`.
    """
    keys = _sort_keys(np.ascontiguousarray(scores, np.float32))
    keys.sort(axis=1)
    keys &= _PLACE
    return keys


@compiled("int64[:, ::1](Array(float32, 2, 'C', True))")
def _sort_keys(scores):
    """Whole numbers that rise as scores [B, n] fall and, where these are equal, as their places rise."""
    bits = scores.view(np.int32)
    keys = np.empty(scores.shape, np.int64)
    for row in range(len(bits)):
        for place in range(bits.shape[1]):
            # -0.0 has other bits than 0.0. Those of negative floats rise as the value falls, the others must be turned.
            value = bits[row, place] if scores[row, place] != 0 else np.int32(0)
            fall = value & 0x7FFFFFFF if value < 0 else ~value
            keys[row, place] = (np.int64(fall) << 32) | place
    return keys
