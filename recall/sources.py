"""Recall sources: each answers a batch of users with usable items, best first.

The contract of a source: `retrieve` returns at most n distinct items a row, none of them excluded or
ineligible, padded with 0 on the right. It may return fewer, or none.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import numpy as np

from features.eligibility import allowed
from features.encoding import FIRST_KNOWN, UserBatch
from recall.index import AnnIndex, Neighbours, best_first
from recall.item_to_item import NeighbourTable
from recall.ranked_lists import RankedLists

DEEPER = 4
"""How much deeper a second look into a ranked list goes; a third takes all of it."""
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
        size: I + 2 of a catalogue small enough to keep a table of what each user may be given; else None.
    """

    users: UserBatch
    vectors: np.ndarray | None
    excluded: np.ndarray
    eligible: np.ndarray | None = None
    size: int | None = None

    def __len__(self) -> int:
        return len(self.users)

    @property
    def most_excluded(self) -> int:
        """How many items the row with the most exclusions has; that many places of a ranking may be void."""
        return int((self.excluded > 0).sum(1).max(initial=0))

    @cached_property
    def table(self) -> np.ndarray:
        """Which items each user may be given, [B, size] bool; worked out once for all sources."""
        assert self.size is not None
        kept = np.ones((len(self), self.size), bool)
        if self.eligible is not None:
            kept &= self.eligible
        kept[np.arange(len(kept))[:, None], self.excluded] = False
        kept[:, :FIRST_KNOWN] = False
        return kept

    def usable(self, items: np.ndarray) -> np.ndarray:
        """Which of items [B, n] may be returned, [B, n] bool; padding may not."""
        if self.size is None:
            return allowed(items, self.excluded, self.eligible)
        return self.table[np.arange(len(items))[:, None], items]


@dataclass(frozen=True)
class SourceResult:
    """items [B, n] int32 padded with 0, scores [B, n] float32, -inf at padding; failed [B] bool or None.

    A failed row could not be answered (its user vector was not finite); other sources fill it.
    """

    items: np.ndarray
    scores: np.ndarray
    failed: np.ndarray | None = None


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

    def __init__(self, index: AnnIndex, nprobe: int | None = None):
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
        return SourceResult(*_first_usable(request, items, scores, n), failed)

    def _among_all(self, request: RecallRequest, vectors: np.ndarray, n: int) -> SourceResult:
        """The n best usable items of a catalogue so small that all of it is scored."""
        scores = self._index.scores(vectors)
        failed = np.isnan(scores[:, 0])
        return SourceResult(*_best_of_all(request, scores, n), failed)

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
        gains = self._gains[request.users.signal]
        if request.size is not None:
            return SourceResult(*_best_of_all(request, self._table.affinities(request.users.history, gains), n))
        return SourceResult(*_best_usable(request, *self._table.reached(request.users.history, gains), n))

    def similar(self, seeds: np.ndarray, request: RecallRequest, n: int) -> SourceResult:
        """Neighbours of seeds [B, S] int32 that are neither seeds nor unusable."""
        items, scores = self._table.reached(seeds)
        owner = np.arange(len(seeds), dtype=np.int64)[:, None] << 32
        scores = np.where(np.isin(items + owner, seeds + owner) | (scores <= 0), -np.inf, scores)
        return SourceResult(*_best_usable(request, items, scores, n))


class ListSource:
    """Ranked lists prepared offline, one for each segment of users: popular or fresh items."""

    waits = False

    def __init__(self, name: str, lists: RankedLists):
        self.name, self._lists = name, lists

    def retrieve(self, request: RecallRequest, n: int) -> SourceResult:
        # Lists are long and mostly usable: without a filter the first look is deep enough.
        first = n + request.most_excluded
        for depth in (first, DEEPER * first, self._lists.length):
            items, scores = _first_usable(request, *self._lists.of(request.users, depth), n)
            if depth >= self._lists.length or (np.count_nonzero(items, axis=1) >= n).all():
                break
        return SourceResult(items, scores)


def failure_of(name: str, result: SourceResult) -> list[tuple[str, str]]:
    """The failure entry of a source that answered but not for every row."""
    return [(name, "non_finite_vector")] if result.failed is not None and result.failed.any() else []


def _groups(request: RecallRequest) -> list[tuple[np.ndarray, np.ndarray | None]]:
    """Rows that share an eligibility mask, with the mask."""
    every = np.arange(len(request))
    if request.eligible is None or request.eligible.ndim == 1:
        return [(every, request.eligible)]
    return [(every[row : row + 1], mask) for row, mask in enumerate(request.eligible)]


def _first_usable(
    request: RecallRequest, items: np.ndarray, scores: np.ndarray, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """The first n usable entries of each row, in their order."""
    kept = request.usable(items)
    order = np.argsort(~kept, axis=1, kind="stable")[:, :n]
    kept = np.take_along_axis(kept, order, 1)
    items, scores = np.take_along_axis(items, order, 1), np.take_along_axis(scores, order, 1)
    return np.where(kept, items, 0).astype(np.int32), np.where(kept, scores, -np.inf).astype(np.float32)


def _best_usable(
    request: RecallRequest, items: np.ndarray, scores: np.ndarray, n: int
) -> tuple[np.ndarray, np.ndarray]:
    """The n best usable entries of each row."""
    return best_first(items, np.where(request.usable(items), scores, -np.inf), n)


def _best_of_all(request: RecallRequest, scores: np.ndarray, n: int) -> tuple[np.ndarray, np.ndarray]:
    """The n best usable items of each row, by scores [B, I + 2] of every item."""
    items = np.broadcast_to(np.arange(scores.shape[1], dtype=np.int32), scores.shape)
    kept = request.usable(items) if request.size is None else request.table
    return best_first(items, np.where(kept, scores, -np.inf), n)
