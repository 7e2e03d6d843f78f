"""Offline evaluation protocols: which rows are kept, and which train, validate and test.

Each follows a published set-up on MovieLens-1M, so that figures can be held against it, and works
on any dataset that has what it needs.
"""

# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions at import, where a type checker cannot see them.

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow.compute as pc

from configs.errors import DataError
from features.datasets import Dataset
from features.schema import ITEM_ID, USER_ID

LIKE_AT = 4.0
DAY_S = 86_400


@dataclass(frozen=True)
class Split:
    """Positions into the dataset's interactions; the three parts are disjoint."""

    train: np.ndarray
    valid: np.ndarray
    test: np.ndarray

    @property
    def rows(self) -> int:
        return len(self.train) + len(self.valid) + len(self.test)


def ctr_random(dataset: Dataset, seed: int = 2024) -> Split:
    """Drop value 3, label value >= 4; 80/10/10 at random (AutoInt's set-up; 739,012 rows)."""
    _need(dataset.has_values, "ctr-random needs values (ratings)", "use topn")
    kept = np.flatnonzero(dataset.values != 3)
    return _cut(np.random.default_rng(seed).permutation(kept), 0.8, 0.9)


def ctr_time(dataset: Dataset) -> Split:
    """Users and items with five positives (value >= 4) each; the first 80, next 10, last 10% of days.

    Rows of users or items that the training part lacks are dropped from the other two.
    """
    _need(dataset.has_values, "ctr-time needs values (ratings)", "use topn")
    _need(dataset.has_times, "ctr-time needs timestamps", "use topn")
    users, items = _codes(dataset)
    kept = core(users, items, 5, counted=dataset.values >= LIKE_AT)
    _need(bool(kept.any()), "ctr-time needs users and items with five positives each", "use topn or ctr-random")
    assert dataset.times is not None
    days = np.floor(dataset.times / DAY_S).astype(np.int64)
    first, last = days[kept].min(), days[kept].max()
    bounds = first + np.array([0.8, 0.9]) * (last - first + 1)
    part = np.digitize(days, bounds)
    train, valid, test = (np.flatnonzero(kept & (part == p)) for p in range(3))
    known = np.isin(users, users[train]) & np.isin(items, items[train])
    return Split(train, valid[known[valid]], test[known[test]])


def topn(dataset: Dataset, seed: int = 2024) -> Split:
    """Value >= 3, 10-core (834,449 rows), each user's rows 8:1:1 at random, a tenth rounded down (RecBole's set-up)."""
    users, items = _codes(dataset)
    wanted = dataset.values >= 3 if dataset.has_values else np.ones(len(users), bool)
    kept = np.flatnonzero(core(users, items, 10, among=wanted))
    core_rows = "users and items with ten rows each" + (" of value 3 or more" if dataset.has_values else "")
    other = "ctr-random, which keeps sparse data, or " if dataset.has_values else ""
    _need(len(kept) > 0, f"topn needs {core_rows}", f"use {other}more interactions")
    shuffled = np.random.default_rng(seed).permutation(kept)
    order = shuffled[np.argsort(users[shuffled], kind="stable")]
    _, start, count = np.unique(users[order], return_index=True, return_counts=True)
    place, held = np.arange(len(order)) - np.repeat(start, count), np.repeat(count // 10, count)
    part = np.minimum(place // held, 2)
    return Split(order[part == 2], order[part == 1], order[part == 0])


PROTOCOLS: dict[str, Callable[[Dataset], Split]] = {
    "ctr-random": ctr_random,
    "ctr-time": ctr_time,
    "topn": topn,
}


def core(
    users: np.ndarray,
    items: np.ndarray,
    k: int,
    *,
    among: np.ndarray | None = None,
    counted: np.ndarray | None = None,
) -> np.ndarray:
    """Mask of rows whose user and item both keep at least k rows, found by repeated removal.

    Args:
        among: [n] bool, the rows to consider at all.
        counted: [n] bool, the rows that count towards k; the others are kept or dropped with them.
    """
    kept = np.ones(len(users), bool) if among is None else among.copy()
    counted = np.ones(len(users), bool) if counted is None else counted
    while True:
        rows = kept & counted
        enough_user = np.bincount(users[rows], minlength=users.max() + 1) >= k
        enough_item = np.bincount(items[rows], minlength=items.max() + 1) >= k
        smaller = kept & enough_user[users] & enough_item[items]
        if smaller.sum() == kept.sum():
            return kept
        kept = smaller


def _cut(order: np.ndarray, first: float, second: float) -> Split:
    a, b = int(len(order) * first), int(len(order) * second)
    return Split(order[:a], order[a:b], order[b:])


def _codes(dataset: Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Users and items as dense integers [n] int64."""
    columns = (pc.dictionary_encode(dataset.interactions.column(name).combine_chunks()) for name in (USER_ID, ITEM_ID))
    users, items = (column.indices.to_numpy(zero_copy_only=False).astype(np.int64) for column in columns)
    return users, items


def _need(present: bool, what: str, remedy: str) -> None:
    if not present:
        raise DataError(f"protocol {what}, which this dataset lacks; {remedy}")
