"""Which events rankers do not train on, so that they and later releases can be judged by them.

Whether an event is held out follows from the event alone. So it stays so while the dataset grows, and releases that
were trained at different times are compared by events that none of them has seen. And it depends on no other event's
time: what was learnt since the last release is mostly what happened since then.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from features.datasets import Dataset, distinct
from features.id_hashes import id_hashes
from features.schema import ITEM_ID, USER_ID

ONE_IN = 20


def held_out(dataset: Dataset) -> np.ndarray:
    """[n] bool: of each interaction whether it is held out; one in `ONE_IN` is, and the newest where none would be."""
    mixed = _hashes(dataset.interactions.column(USER_ID)) + np.uint64(3) * _hashes(dataset.interactions.column(ITEM_ID))
    times = dataset.times
    if times is not None:
        mixed = mixed + np.uint64(5) * times.view(np.uint64)
    held = _scattered(mixed) % np.uint64(ONE_IN) == 0
    if len(held) and not held.any():
        held[np.argmax(times) if times is not None else 0] = True
    return held


def by_age(dataset: Dataset) -> np.ndarray:
    """Positions of the interactions, oldest first; in a random order, but always the same, where some lack a time."""
    times = dataset.times
    if times is None:
        return np.random.default_rng(0).permutation(len(dataset.interactions))
    return np.argsort(times, kind="stable")


def train_and_valid(dataset: Dataset, most: int | None) -> tuple[np.ndarray, np.ndarray]:
    """Positions, ascending, of the newest rows to train on, up to ``most``, and of the newest ones held out, in
    proportion. Either may be empty where there is a single row."""
    held, order = held_out(dataset), by_age(dataset)
    train = order[~held[order]]
    train = train[max(0, len(train) - most) :] if most else train
    valid = order[held[order]]
    valid = valid[max(0, len(valid) - max(1, len(train) // (ONE_IN - 1))) :]
    return np.sort(train), np.sort(valid)


def _hashes(column: pa.ChunkedArray) -> np.ndarray:
    """[n] uint64: of each row's text."""
    texts, places = distinct(column)
    return id_hashes(texts)[places]


def _scattered(values: np.ndarray) -> np.ndarray:
    """[n] uint64: numbers that lie near each other far apart (the finalizer of MurmurHash3, A. Appleby)."""
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xFF51AFD7ED558CCD)
    values = (values ^ (values >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    return values ^ (values >> np.uint64(33))
