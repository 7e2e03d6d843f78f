"""Sorting the rows of a batch."""

from __future__ import annotations

import numpy as np


def falling(scores: np.ndarray) -> np.ndarray:
    """Places [B, n] int64 of scores [B, n] by falling value; equal ones keep their order.

    Scores count as float32 and must not be NaN. Score and place are sorted as one whole number: a plain
    sort of those is several times quicker than a stable `np.argsort`.
    """
    # Adding 0 turns -0.0, which has other bits, into 0.0.
    bits = (0.0 - scores.astype(np.float32) + np.float32(0.0)).astype(np.float32).view(np.int32)
    # The bits of negative floats run backwards.
    ranks = (bits ^ ((bits >> 31) & 0x7FFFFFFF)).astype(np.int64)
    return np.sort((ranks << 32) | np.arange(scores.shape[1]), axis=1) & 0xFFFFFFFF
