"""Which of many items may be given to each of many users.

A rule about eligible items comes as a mask of the whole catalogue, bool: [I + 2] for all users, [B, I + 2] for
each, or None when every item is eligible. Compiled loops take it as `mask_rows` gives it, and look at row
``row % len(masks)``.
"""

from __future__ import annotations

import numpy as np

from features.compiled import BOOLS, ITEMS, compiled
from features.encoding import FIRST_KNOWN

_EVERY_ITEM = np.ones((0, 0), bool)


def mask_rows(eligible: np.ndarray | None) -> np.ndarray:
    """The mask with an axis of rows: [0, 0] for None, [1, I + 2] for one that all users share, else [B, I + 2]."""
    if eligible is None:
        return _EVERY_ITEM
    return eligible if eligible.ndim == 2 else eligible[None]


def allowed(items: np.ndarray, excluded: np.ndarray, eligible: np.ndarray | None) -> np.ndarray:
    """Which of items [B, n] int32 are real, eligible, not excluded and not the same as one before them, [B, n] bool.

    Args:
        excluded: [B, E] int32, padded with 0.
    """
    items, excluded = np.ascontiguousarray(items), np.ascontiguousarray(excluded)
    size = max(items.max(initial=0), excluded.max(initial=0)) + 1
    return _allowed(items, excluded, mask_rows(eligible), np.zeros(size, np.bool_))


@compiled(f"boolean[:, ::1]({ITEMS}, {ITEMS}, {BOOLS}, boolean[::1])")
def _allowed(items, excluded, masks, barred):
    """``barred``: [all indices] of falses, and so again afterwards."""
    kept = np.zeros(items.shape, np.bool_)
    for row in range(len(items)):
        for item in excluded[row]:
            barred[item] = True
        for place in range(items.shape[1]):
            item = items[row, place]
            eligible = len(masks) == 0 or masks[row % len(masks), item]
            if item >= FIRST_KNOWN and eligible and not barred[item]:
                kept[row, place] = barred[item] = True
        for item in excluded[row]:
            barred[item] = False
        for item in items[row]:
            barred[item] = False
    return kept
