"""Which of many items may be given to each of many users."""

from __future__ import annotations

import numpy as np

from features.encoding import FIRST_KNOWN


def allowed(items: np.ndarray, excluded: np.ndarray, eligible: np.ndarray | None) -> np.ndarray:
    """Which of items [B, n] int32 are real, eligible and not excluded, [B, n] bool.

    Args:
        excluded: [B, E] int32, padded with 0.
        eligible: bool, [I + 2] for all rows or [B, I + 2] for each; None when every item is.
    """
    kept = items >= FIRST_KNOWN
    rows = np.arange(len(items))[:, None]
    if eligible is not None:
        kept &= eligible[items] if eligible.ndim == 1 else eligible[rows, items]
    if excluded.any():
        # Looking up in a table is many times quicker than `np.isin`; of a large one few pages are touched.
        banned = np.zeros((len(items), max(items.max(initial=0), excluded.max()) + 1), bool)
        banned[rows, excluded] = True
        kept &= ~banned[rows, items]
    return kept


def first_places(items: np.ndarray) -> np.ndarray:
    """Where each item of a row stands for the first time, items [B, n] to [B, n] bool."""
    first = np.ones(items.shape, bool)
    in_order = np.sort(items, axis=1)
    for row in np.flatnonzero(((in_order[:, 1:] == in_order[:, :-1]) & (in_order[:, 1:] > 0)).any(1)):
        first[row] = False
        first[row, np.unique(items[row], return_index=True)[1]] = True
    return first
