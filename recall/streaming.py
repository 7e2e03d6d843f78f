"""An index of items that come, change and go while it is searched.

Beside an `AnnIndex` that is never changed lie the vectors of what changed since it was made, searched exactly; of
the index's own items those that changed or went are masked. When there are many, another index is made of both,
in the background, and takes their place. Readers take no lock: what they read is replaced as a whole.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from features.background import in_background
from features.row_table import RowTable
from recall.index import AnnIndex, Neighbours, best_first

COMPACT_ABOVE, COMPACT_SHARE = 1_000, 0.02
"""Changed items beside the index from which, and share of its items above which, another is made."""
RETRAIN_SHARE = 0.2
"""Of the items that came or changed since an index was trained; above it another is trained, not only filled."""


@dataclass(frozen=True)
class _State:
    """held [R] bool: items that the index may answer with. ids [m] int32, ascending: items beside it."""

    index: AnnIndex
    held: np.ndarray
    ids: np.ndarray
    table: RowTable

    @classmethod
    def of(cls, index: AnnIndex, table: RowTable) -> _State:
        held = np.zeros(len(table), bool)
        held[index.ids()] = True
        return cls(index, held, np.zeros(0, np.int32), table)

    @cached_property
    def allowed(self) -> np.ndarray | None:
        """``held``, or None when the index holds nothing else."""
        return self.held if np.count_nonzero(self.held) < len(self.index) else None

    @cached_property
    def count(self) -> int:
        return int(np.count_nonzero(self.held)) + len(self.ids)

    @cached_property
    def vectors(self) -> np.ndarray:
        """[m, D] float32 of ``ids``."""
        return self.table[self.ids]

    @cached_property
    def present(self) -> np.ndarray:
        """All items there are, ascending, [n] int32."""
        return np.union1d(np.flatnonzero(self.held), self.ids).astype(np.int32)

    @cached_property
    def matrix(self) -> np.ndarray:
        """[n, D] float32 of ``present``; asked for of catalogues so small that all of it is scored."""
        return self.table[self.present]

    def changed(self, ids: np.ndarray, gone: np.ndarray) -> _State:
        """After items were put and others dropped."""
        held = np.zeros(len(self.table), bool)
        held[: len(self.held)] = self.held
        held[ids] = held[gone[gone < len(held)]] = False
        return _State(self.index, held, np.setdiff1d(np.union1d(self.ids, ids), gone).astype(np.int32), self.table)


class StreamingIndex:
    """What recall asks of an `AnnIndex`, with changes. One thread at a time makes them.

    Args:
        spawn: runs work beside.
    """

    def __init__(self, index: AnnIndex, spawn: Callable[[str, Callable[[], None]], object] = in_background):
        assert isinstance(index.vectors, np.ndarray)
        table = RowTable(index.vectors)
        self._state = _State.of(index.over(table), table)
        self._spawn, self._lock = spawn, threading.Lock()
        self._later: list[np.ndarray] | None = None
        self._untrained = np.zeros(0, np.int32)

    def __len__(self) -> int:
        return self._state.count

    @property
    def vectors(self) -> RowTable:
        """Of all items by index."""
        return self._state.table

    @property
    def beside(self) -> int:
        """Items that are not in the index proper yet."""
        return len(self._state.ids)

    def scored(self, queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """As `AnnIndex.scored`."""
        state = self._state
        queries = np.asarray(queries, np.float32)
        with np.errstate(invalid="ignore"):
            found = queries @ state.matrix.T
        found[~np.isfinite(queries).all(1)] = np.nan
        return state.present[None], found

    def search(
        self, queries: np.ndarray, k: int, *, nprobe: int | None = None, eligible: np.ndarray | None = None
    ) -> Neighbours:
        """As `AnnIndex.search`; items behind the end of ``eligible`` are not returned."""
        state = self._state
        found = state.index.search(queries, k, nprobe=nprobe, eligible=_both(state.allowed, eligible))
        ids, vectors = state.ids, state.vectors
        if eligible is not None and len(ids):
            kept = np.flatnonzero(ids < len(eligible))
            kept = kept[eligible[ids[kept]]]
            ids, vectors = ids[kept], vectors[kept]
        if not len(ids):
            return found
        beside = np.full((len(queries), len(ids)), -np.inf, np.float32)
        beside[~found.failed] = queries[~found.failed] @ vectors.T
        items = np.concatenate([found.items, np.broadcast_to(ids, beside.shape)], 1)
        items, scores = best_first(items, np.concatenate([found.scores, beside], 1), k)
        return Neighbours(items, scores, found.failed)

    def search_among(self, queries: np.ndarray, ids: np.ndarray, k: int) -> Neighbours:
        """As `AnnIndex.search_among`; of the ids those that there are."""
        state = self._state
        ids = ids[ids < len(state.held)]
        return state.index.search_among(queries, ids[state.held[ids] | np.isin(ids, state.ids)], k)

    def apply(self, ids: np.ndarray, vectors: np.ndarray, gone: np.ndarray) -> None:
        """Put items ids [n] int32 with vectors [n, D] float32, and drop the items ``gone`` [m]."""
        with self._lock:
            self._state.table.put(ids, vectors)
            self._state = self._state.changed(ids, gone)
            self._untrained = np.union1d(self._untrained, ids).astype(np.int32)
            if self._later is not None:
                self._later += [ids, gone]
            elif len(self._state.ids) > max(COMPACT_ABOVE, COMPACT_SHARE * len(self._state.index)):
                self._later = []
                state, untrained = self._state, self._untrained
                self._spawn("index-compaction", lambda: self._compact(state, untrained))

    def _compact(self, state: _State, untrained: np.ndarray) -> None:
        """Make another index of a state, and search that from then on."""
        try:
            if len(untrained) > RETRAIN_SHARE * max(1, state.count):
                index, trained = AnnIndex.of_items(state.present, state.table, state.index.spec), untrained
            else:
                index, trained = state.index.refilled(state.present), untrained[:0]
        except BaseException:
            with self._lock:
                self._later = None  # the next change begins anew
            raise
        with self._lock:
            assert self._later is not None
            later = np.unique(np.concatenate([np.zeros(0, np.int32), *self._later])).astype(np.int32)
            fresh = _State.of(index, self._state.table)
            # What was put meanwhile stays beside the index; what went is in neither.
            put = np.intersect1d(later, self._state.ids).astype(np.int32)
            self._state = fresh.changed(put, np.setdiff1d(later, put))
            self._untrained = np.union1d(np.setdiff1d(self._untrained, trained), put).astype(np.int32)
            self._later = None


def _both(held: np.ndarray | None, eligible: np.ndarray | None) -> np.ndarray | None:
    """Items that two masks of perhaps different lengths have in common."""
    if held is None or eligible is None:
        return eligible if held is None else held
    size = min(len(held), len(eligible))
    return held[:size] & eligible[:size]
