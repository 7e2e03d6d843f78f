"""Training rows in groups of one user, so that a user's history is encoded once for several rows.

Every row still sees only what it may: the others of its user's events, or the strictly earlier ones.
That is a mask [rows, events] over the group's shared history.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from features.datasets import IndexedInteractions

View = Literal["others", "earlier"]
"""``others``: a user's other events, for data without times or split at random. ``earlier``: events before the row."""


@dataclass(frozen=True)
class GroupBatch:
    """G groups of up to C rows over a shared history of H events.

    users [G] int64; rows [G, C] int64 positions into the rows' arrays, -1 where there is none;
    history, signal [G, H] int64 most recent first; mask [G, C, H] float32.
    """

    users: np.ndarray
    rows: np.ndarray
    history: np.ndarray
    signal: np.ndarray
    mask: np.ndarray


class GroupedRows:
    """Rows to train on or to score, beside the events that may appear in their histories.

    Args:
        rows: the rows.
        events: the events histories are made of; for training these are the rows themselves.
        length: most events a row sees.
        size: most rows in a group.
    """

    def __init__(self, rows: IndexedInteractions, events: IndexedInteractions, length: int, size: int, view: View):
        self.rows, self.length, self.size, self.view = rows, length, size, view
        times = np.arange(len(events), dtype=np.float64) if events.times is None else events.times
        order = np.lexsort((events.items, times, events.users))
        self._items = np.append(events.items[order], 0).astype(np.int64)
        self._signals = np.append(events.signals[order], 0).astype(np.int64)
        self._times = np.append(times[order], np.inf)
        self._users = events.users[order]
        self._row_times = np.full(len(rows), np.inf) if rows.times is None else rows.times
        self._keys = self._users.astype(np.int64)

    def groups(self, rng: np.random.Generator | None) -> np.ndarray:
        """All rows as groups [G, size] int64 padded with -1, shuffled when ``rng`` is given.

        Under ``earlier`` a group's rows are neighbours in time, so they can share one window.
        """
        noise = rng.random(len(self.rows)) if rng is not None and self.view == "others" else self._row_times
        order = np.lexsort((noise, self.rows.users))
        users = self.rows.users[order]
        _, start, count = np.unique(users, return_index=True, return_counts=True)
        # Cuts between groups move from epoch to epoch, so that rows meet different neighbours.
        shift = np.zeros(len(start), np.int64) if rng is None else rng.integers(0, self.size, len(start))
        place = np.arange(len(order)) - np.repeat(start - shift, count)
        needed = (count + shift - 1) // self.size + 1
        first = np.repeat(np.cumsum(needed) - needed, count)
        packed = np.full((int(needed.sum()), self.size), -1, np.int64)
        packed[first + place // self.size, place % self.size] = order
        return packed if rng is None else packed[rng.permutation(len(packed))]

    def batch(self, groups: np.ndarray) -> GroupBatch:
        """Histories and masks of groups [G, size]."""
        groups = groups[(groups >= 0).any(1)]
        some = groups.max(1)
        users = self.rows.users[some].astype(np.int64)
        begin, end = np.searchsorted(self._keys, users), np.searchsorted(self._keys, users, side="right")
        times = np.where(groups >= 0, self._row_times[groups], -np.inf)
        width = self.length
        if self.view == "earlier":
            end = self._cut(begin, end, times.max(1))
            width += self.size
        at = end[:, None] - 1 - np.arange(width)
        at = np.where(at >= begin[:, None], at, len(self._items) - 1)
        mask = self._mask(groups, at, times)
        return GroupBatch(users, groups, self._items[at], self._signals[at], mask)

    def _cut(self, begin: np.ndarray, end: np.ndarray, times: np.ndarray) -> np.ndarray:
        """End of the events strictly earlier than times [G], within [begin, end)."""
        return np.array(
            [b + np.searchsorted(self._times[b:e], t, side="left") for b, e, t in zip(begin, end, times, strict=True)],
            np.int64,
        )

    def _mask(self, groups: np.ndarray, at: np.ndarray, times: np.ndarray) -> np.ndarray:
        history = self._items[at]
        if self.view == "others":
            usable = (history[:, None, :] != self.rows.items[groups][:, :, None]) & (history > 0)[:, None, :]
            return usable.astype(np.float32)
        usable = self._times[at][:, None, :] < times[:, :, None]
        return (usable & (usable.cumsum(-1) <= self.length)).astype(np.float32)
