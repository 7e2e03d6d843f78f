"""The held-out events of a dataset; the users who have some, as a store would know them before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from configs.errors import DataError, Unavailable
from features.datasets import Dataset, distinct
from features.holding_out import by_age, held_out
from features.schema import ITEM_ID, USER_ID
from features.store import UserEvent, UserRecord
from features.store_records import History, user_record


@dataclass(frozen=True)
class Holdout:
    """Held-out events, and some users with items that they met for the first time in them.

    Attributes:
        rows: positions [n] int64 of the held-out interactions, oldest first.
        users: ids.
        relevant: for each user, the ids of the items to be found.
    """

    rows: np.ndarray
    users: list[str]
    relevant: list[list[str]]

    @classmethod
    def of(cls, dataset: Dataset, most_users: int, seed: int) -> Holdout:
        """The events that no ranker trains on, and users who met new items in them.

        Raises:
            DataError: no user met a new item in them.
        """
        held, order = held_out(dataset), by_age(dataset)
        rows = order[held[order]]
        user_ids, users = distinct(dataset.interactions.column(USER_ID))
        item_ids, items = distinct(dataset.interactions.column(ITEM_ID))
        pairs = users * len(item_ids) + items
        new = np.unique(pairs[rows][~np.isin(pairs[rows], pairs[~held])])
        owners, starts = np.unique(new // max(1, len(item_ids)), return_index=True)
        if not len(owners):
            raise DataError(f"dataset {dataset.name}: no new item among the held-out events, nothing to be found")
        wanted = np.split(new % len(item_ids), starts[1:])
        chosen = np.sort(np.random.default_rng(seed).permutation(len(owners))[:most_users])
        return cls(
            rows,
            [user_ids[owners[place]] for place in chosen],
            [[item_ids[item] for item in wanted[place]] for place in chosen],
        )


class HoldoutStore:
    """A feature store in memory: the users' profiles, and their events without the held-out ones. Read-only.

    Args:
        most: events kept of a user, the newest.
    """

    def __init__(self, dataset: Dataset, holdout: Holdout, most: int, now_s: float):
        events = _histories(dataset, holdout, most)
        wanted = pa.array(holdout.users, pa.string())
        profiles = dataset.users.filter(pc.is_in(dataset.users.column(USER_ID), wanted)).to_pylist()  # type: ignore[attr-defined]
        known = {row[USER_ID]: {k: v for k, v in row.items() if k != USER_ID and v is not None} for row in profiles}
        self._records = {user: user_record(user, known.get(user, {}), events[user], now_s) for user in holdout.users}

    def fetch(self, user_ids: Sequence[str]) -> list[UserRecord | None]:
        return [self._records.get(user) for user in user_ids]

    def record(self, user_id: str, events: Sequence[UserEvent]) -> None:
        raise Unavailable("the store of an evaluation is read-only")

    def record_many(self, events: Mapping[str, Sequence[UserEvent]]) -> None:
        raise Unavailable("the store of an evaluation is read-only")

    def put(self, user_id: str, features: Mapping[str, Any]) -> None:
        raise Unavailable("the store of an evaluation is read-only")

    def load(self, dataset: Dataset, progress: Any = None) -> int:
        raise Unavailable("the store of an evaluation is read-only")

    def close(self) -> None:
        """There is nothing to let go of."""


def _histories(dataset: Dataset, holdout: Holdout, most: int) -> dict[str, History]:
    """Events of the users, newest first."""
    order = by_age(dataset)
    kept = order[~np.isin(order, holdout.rows)][::-1]
    table = dataset.interactions.select([USER_ID, ITEM_ID, "value", "time_s"]).take(kept)
    table = table.filter(pc.is_in(table.column(USER_ID), pa.array(holdout.users, pa.string())))  # type: ignore[attr-defined]
    found = {user: History([], [], []) for user in holdout.users}
    for user, item, value, time_s in zip(*(column.to_pylist() for column in table.columns), strict=True):
        history = found[user]
        if len(history.items) < most:
            history.items.append(item)
            history.values.append(value)
            history.times_s.append(time_s)
    return found
