"""Recall sources: each answers a batch of users with usable items, best first.

The contract of a source: `retrieve` returns at most n distinct items a row, none of them excluded or
ineligible, padded with 0 on the right. It may return fewer, or none.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from features.eligibility import allowed, mask_rows
from features.encoding import UserBatch
from recall.index import AnnIndex, Neighbours
from recall.item_to_item import NeighbourTable
from recall.kernels import best_keys, first_keys, keys_of, read_keys, usable_keys
from recall.ranked_lists import RankedLists
from recall.streaming import StreamingIndex

EXACT_UP_TO = 4_096
"""Items up to which scoring each of them exactly beats the index, of the whole catalogue or of what is eligible."""


@dataclass(frozen=True)
class RecallRequest:
    """A batch of B users and what may be recalled for them.

    Attributes:
        users: encoded users; histories include any seed items.
        vectors: [B, D] float32 from the user tower, or None when it failed.
        excluded: [B, E] int32 item indices never to return, padded with 0.
        eligible: bool, [I + 2] for all users or [B, I + 2] for each; None when every item is.
    """

    users: UserBatch
    vectors: np.ndarray | None
    excluded: np.ndarray
    eligible: np.ndarray | None = None

    def __len__(self) -> int:
        return len(self.users)

    @property
    def most_excluded(self) -> int:
        """How many items the row with the most exclusions has; that many places of a ranking may be void."""
        return int((self.excluded > 0).sum(1).max(initial=0))

    @cached_property
    def highest_excluded(self) -> int:
        """The largest item index that any row excludes."""
        return int(self.excluded.max(initial=0))

    @cached_property
    def masks(self) -> np.ndarray:
        """`eligible` as compiled loops take it."""
        return mask_rows(self.eligible)

    def usable(self, items: np.ndarray) -> np.ndarray:
        """Which of items [B, n] may be returned, [B, n] bool; padding and repetitions may not."""
        return allowed(items, self.excluded, self.eligible)


@dataclass(frozen=True)
class SourceResult:
    """Candidates of B users, best first: keys [B, n] (see `recall.kernels`); failed [B] bool or None.

    A failed row could not be answered (its user vector was not finite); other sources fill it.
    """

    keys: np.ndarray
    failed: np.ndarray | None = None

    @classmethod
    def of(cls, items: np.ndarray, scores: np.ndarray, failed: np.ndarray | None = None) -> SourceResult:
        """From items [B, n] int32, best first and padded with 0, and their scores [B, n]."""
        return cls(keys_of(np.ascontiguousarray(items, np.int32), np.ascontiguousarray(scores, np.float32)), failed)

    @property
    def items(self) -> np.ndarray:
        """[B, n] int32, padded with 0."""
        return read_keys(self.keys)[0]

    @property
    def scores(self) -> np.ndarray:
        """[B, n] float32, -inf at padding."""
        return read_keys(self.keys)[1]


class Source(Protocol):
    """Something that recalls.

    ``waits`` says that it waits for something outside the process, and so wants a thread and a time
    limit; the others compute, and would only take turns on the interpreter if they had threads.
    """

    name: str
    waits: bool

    def retrieve(self, request: RecallRequest, n: int) -> SourceResult: ...


class AnnSource:
    """Nearest items to the user vector."""

    name = "ann"
    waits = False

    def __init__(self, index: AnnIndex | StreamingIndex, nprobe: int | None = None):
        self._index, self._nprobe = index, nprobe

    def retrieve(self, request: RecallRequest, n: int) -> SourceResult:
        if request.vectors is None:
            raise ValueError("no user vectors: the user tower failed")
        if len(self._index) <= EXACT_UP_TO:
            return self._among_all(request, request.vectors, n)
        failed = np.zeros(len(request), bool)
        # Excluded items take up places in the answer, so that many more are fetched.
        fetch = n + request.most_excluded
        items, scores = np.zeros((len(request), fetch), np.int32), np.full((len(request), fetch), -np.inf, np.float32)
        for rows, eligible in _groups(request):
            found = self._search(request.vectors[rows], fetch, eligible)
            items[rows], scores[rows], failed[rows] = found.items, found.scores, found.failed
        barred = np.zeros(max(len(self._index.vectors), request.highest_excluded + 1), bool)
        keys = usable_keys(items, scores, request.excluded, request.masks, barred)
        return SourceResult(best_keys(keys, n), failed)

    def _among_all(self, request: RecallRequest, vectors: np.ndarray, n: int) -> SourceResult:
        """The n best usable items of a catalogue so small that all of it is scored."""
        every, scores = self._index.scored(vectors)
        masks = request.masks
        if len(masks):  # made before the index was asked, and perhaps shorter
            every = np.where(every < masks.shape[1], every, 0)
        barred = np.zeros(max(int(every.max(initial=0)), request.highest_excluded) + 1, bool)
        keys = usable_keys(every, scores, request.excluded, request.masks, barred)
        return SourceResult(best_keys(keys, n), np.logical_not(np.isfinite(vectors).all(1)))

    def _search(self, vectors: np.ndarray, fetch: int, eligible: np.ndarray | None) -> Neighbours:
        if eligible is not None and np.count_nonzero(eligible) <= EXACT_UP_TO:
            return self._index.search_among(vectors, np.flatnonzero(eligible), fetch)
        return self._index.search(vectors, fetch, nprobe=self._nprobe, eligible=eligible)


class ItemToItemSource:
    """Neighbours of what the user met; negative events count with a weight of their own."""

    name = "item_to_item"
    waits = False

    def __init__(self, table: NeighbourTable, signal_gains: tuple[float, float, float] = (0.0, 1.0, 1.0)):
        self._table, self._gains = table, np.array(signal_gains, np.float32)

    def retrieve(self, request: RecallRequest, n: int) -> SourceResult:
        users = request.users
        gains = self._gains[users.signal]
        return SourceResult(self._table.reached(users.history, gains, request.excluded, request.masks, n))

    def similar(self, seeds: np.ndarray, request: RecallRequest, n: int) -> SourceResult:
        """Items [B, n] that the seeds [B, S] int32 speak for, without the seeds themselves."""
        gains, excluded = np.ones(seeds.shape, np.float32), np.concatenate([request.excluded, seeds], 1)
        return SourceResult(self._table.reached(seeds, gains, excluded, request.masks, n, positive=True))


class ListSource:
    """Ranked lists prepared offline, one for each segment of users: popular or fresh items."""

    waits = False

    def __init__(self, name: str, lists: RankedLists):
        self.name, self._lists = name, lists
        self._items, self._scores = np.ascontiguousarray(lists.items), np.ascontiguousarray(lists.scores)
        self._highest = int(lists.items.max(initial=0))

    def retrieve(self, request: RecallRequest, n: int) -> SourceResult:
        rows, n = self._lists.rows_of(request.users), min(n, self._items.shape[1])
        barred = np.zeros(max(self._highest, request.highest_excluded) + 1, bool)
        return SourceResult(first_keys(self._items, self._scores, rows, request.excluded, request.masks, n, barred))


def failure_of(name: str, result: SourceResult) -> list[tuple[str, str]]:
    """The failure entry of a source that answered but not for every row."""
    return [(name, "non_finite_vector")] if result.failed is not None and result.failed.any() else []


def _groups(request: RecallRequest) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """Rows that share an eligibility mask, with the mask."""
    every = np.arange(len(request))
    if request.eligible is None or request.eligible.ndim == 1:
        return [(every, request.eligible)]
    return [(every[row : row + 1], mask) for row, mask in enumerate(request.eligible)]
