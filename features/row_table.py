"""A table by item index that can be changed while it is read: the release's own rows, and rows put over them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from features.encoding import FIRST_KNOWN, UNKNOWN

_NONE = -1


class _Changed(NamedTuple):
    """rows [M, D] with room for more, and for each item index [R] the row that holds it, or none."""

    rows: np.ndarray
    place: np.ndarray


class RowTable:
    """Rows [I + 2, D] of items, of which some are replaced and to which others are added.

    Readers take no lock: what they read is replaced, never changed. One thread at a time may `put`.

    Args:
        base: mapped from a file, perhaps; never written to.
    """

    def __init__(self, base: np.ndarray):
        self._base = base
        self._used = 0
        self._changed: _Changed | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), self._base.shape[1]

    def __len__(self) -> int:
        """The highest index that has a row, and one."""
        changed = self._changed
        return len(self._base) if changed is None else len(changed.place)

    def __getitem__(self, items: np.ndarray) -> np.ndarray:
        return self.take(items)

    def take(self, items: np.ndarray) -> np.ndarray:
        """Rows [..., D] of item indices [...]; that of the unknown item where there is none."""
        changed = self._changed
        if changed is None and len(items) and items.max(initial=0) < len(self._base):
            return self._base.take(items, 0)
        if changed is None:
            return self._base.take(np.where(items < len(self._base), items, UNKNOWN), 0)
        where = changed.place[np.where(items < len(changed.place), items, UNKNOWN)]
        out = self._base.take(np.where(items < len(self._base), items, UNKNOWN), 0)
        hit = where >= 0
        if hit.any():
            out[hit] = changed.rows[where[hit]]
        return out

    def put(self, items: np.ndarray, rows: np.ndarray) -> None:
        """Replace or add: distinct item indices [n], rows [n, D]."""
        assert len(items) == len(rows) and (not len(items) or items.min() >= FIRST_KNOWN)
        if not len(items):
            return
        before = self._changed or _Changed(np.empty((0, self._base.shape[1]), self._base.dtype), self._no_places(0))
        place = self._no_places(max(len(before.place), int(items.max()) + 1))
        place[: len(before.place)] = before.place
        store, used = before.rows, self._used
        if used + len(items) > len(store):
            # What is not referred to any more stays behind.
            live = np.flatnonzero(place >= 0)
            store = np.empty((max(64, 2 * (len(live) + len(items))), self._base.shape[1]), self._base.dtype)
            store[: len(live)], used = before.rows[place[live]], len(live)
            place[live] = np.arange(len(live), dtype=np.int32)
        store[used : used + len(items)] = rows
        place[items] = np.arange(used, used + len(items), dtype=np.int32)
        self._used, self._changed = used + len(items), _Changed(store, place)

    def _no_places(self, size: int) -> np.ndarray:
        return np.full(max(size, len(self._base)), _NONE, np.int32)
