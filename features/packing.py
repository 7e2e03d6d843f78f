"""Histories of a batch from lists of any length to one padded array, in a compiled loop."""

from __future__ import annotations

import numpy as np

from features.compiled import compiled
from features.vocabulary import FIRST_KNOWN

SIGNAL_NEGATIVE = 1
SIGNAL_POSITIVE = 2
_KNOWN = np.int32(FIRST_KNOWN)


@compiled("Tuple((int32[:, ::1], int8[:, ::1]))(int32[::1], float64[::1], int64[::1], int64, float64)")
def pack_histories(items, values, ends, length, positive_at):
    """Up to ``length`` known events of each row, in the order given.

    Args:
        items: item indices of all rows, one row behind the other, [N]; unknown ones are left out.
        values: one each, [N]; an event is negative below ``positive_at``, else positive, NaN too.
        ends: where each row ends, [B + 1]; the first is 0.

    Returns:
        history [B, W] and signal [B, W], padded with 0; W is the length of the longest row, at least 1.
    """
    rows = len(ends) - 1
    width = 1
    for row in range(rows):
        count = 0
        for place in range(ends[row], ends[row + 1]):
            count += items[place] >= _KNOWN
        width = max(width, min(count, length))
    history = np.zeros((rows, width), np.int32)
    signal = np.zeros((rows, width), np.int8)
    for row in range(rows):
        count = 0
        for place in range(ends[row], ends[row + 1]):
            if items[place] >= _KNOWN and count < width:
                history[row, count] = items[place]
                signal[row, count] = SIGNAL_NEGATIVE if values[place] < positive_at else SIGNAL_POSITIVE
                count += 1
    return history, signal
