"""What a feature store holds, and the rules its implementations share.

A user row has a profile, the *base* history that a bulk load brought, and the *live* events
recorded since. Loading again replaces profile and base and keeps the live events, so a load can be
repeated at any time. A row that only an earlier load brought, of a user whom the dataset no longer
has, goes; one with live events, or with a profile put since, stays. Reading merges the two
histories, most recent first.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from configs.errors import InvalidRequest
from features.datasets import Dataset
from features.id_hashes import id_hashes
from features.parsing import MAX_ID_LENGTH
from features.schema import ITEM_ID, USER_ID


@dataclass(frozen=True)
class UserEvent:
    """One interaction. ``time_s`` in seconds since 1970 UTC; None takes the moment of recording."""

    item_id: str
    value: float | None = None
    time_s: float | None = None


@dataclass(frozen=True)
class UserRecord:
    """One user.

    Attributes:
        item_hashes: [n] uint64, which items, most recent first (`features.id_hashes`).
        values: [n] float64, NaN where absent.
        updated_at_s: when the profile was last put, or the row first made.
        history: the same events with ids and times; worked out when called, for nothing that a request waits for.
    """

    user_id: str
    features: Mapping[str, Any]
    item_hashes: np.ndarray
    values: np.ndarray
    updated_at_s: float
    history: Callable[[], History]

    @property
    def items(self) -> tuple[str, ...]:
        """Ids of the items, most recent first."""
        return tuple(self.history().items)

    def is_stale(self, now_s: float, stale_after_s: float | None) -> bool:
        """Whether the profile is older than allowed; never, when there is no limit."""
        return stale_after_s is not None and now_s - self.updated_at_s > stale_after_s


@dataclass(frozen=True)
class History:
    """Events as three columns, most recent first; None where absent."""

    items: list[str]
    values: list[float | None]
    times_s: list[float | None]

    @classmethod
    def of(cls, events: Sequence[UserEvent], now_s: float) -> History:
        """Events given oldest first, as they happened."""
        newest_first = [_checked(event, place) for place, event in enumerate(events)][::-1]
        times = [now_s if event.time_s is None else event.time_s for event in newest_first]
        return cls([event.item_id for event in newest_first], [event.value for event in newest_first], times)  # type: ignore[arg-type]

    @classmethod
    def empty(cls) -> History:
        return cls([], [], [])

    def columns(self) -> list[list[Any]]:
        return [self.items, self.values, self.times_s]

    def marks(self) -> np.ndarray:
        """The values [n] float64, NaN where absent."""
        return np.array(self.values, np.float64)

    def moments(self) -> np.ndarray:
        """The times [n] float64, NaN where absent."""
        return np.array(self.times_s, np.float64)

    def cut(self, limit: int) -> History:
        return History(self.items[:limit], self.values[:limit], self.times_s[:limit])


def merge(newer: History, older: History, limit: int) -> History:
    """Both histories by falling time, the newer one first among equals, cut to ``limit``.

    Events without a time keep their order behind all others. A newer event that the older history
    already holds (same item, same time) is left out, so recording twice, or loading a dataset that
    contains what was recorded live, counts it once.
    """
    if not newer.items:
        return older.cut(limit)
    behind = list(zip(*older.columns(), strict=True))
    seen = {(item, time) for item, _, time in behind}
    rows = []
    for item, value, time in zip(*newer.columns(), strict=True):
        if time is None or (item, time) not in seen:
            seen.add((item, time))
            rows.append((item, value, time))
    rows += behind
    rows.sort(key=lambda row: math.inf if row[2] is None else -row[2])
    items, values, times = (list(column) for column in zip(*rows[:limit], strict=True))
    return History(items, values, times)


def user_record(user_id: str, features: Mapping[str, Any], history: History, updated_at_s: float) -> UserRecord:
    """A record of a history given in full."""
    return UserRecord(user_id, features, id_hashes(history.items), history.marks(), updated_at_s, lambda: history)


def user_key(user_id: str) -> bytes:
    """The id as UTF-8. Raises InvalidRequest when it is empty, too long or half a surrogate pair."""
    return _id_bytes(user_id, USER_ID, USER_ID)


def is_left_over(row: Mapping[str, Any], load_began_s: float) -> bool:
    """Whether the stored profile is but the rest of a load before the one that began then.

    ``row["loaded_at_s"]`` is when the load began that last wrote the profile; absent when `put` or `record` did.
    """
    loaded_at_s = row.get("loaded_at_s")
    return loaded_at_s is not None and loaded_at_s < load_began_s


def encode(value: Any) -> bytes:
    """JSON; raises InvalidRequest when a feature is not a plain value."""
    try:
        return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)
    except TypeError as error:
        raise InvalidRequest(f"user features must be plain JSON values ({error})", "user_features") from None


def load_rows(dataset: Dataset, limit: int) -> Iterator[tuple[str, dict[str, Any], History]]:
    """Every user of a dataset with profile and newest ``limit`` events.

    Without times the order of the rows stands for time, as it does for training histories.
    """
    users, order, starts = _by_user(dataset)
    items = dataset.interactions.column(ITEM_ID).combine_chunks().dictionary_encode()
    items = items.combine_chunks() if isinstance(items, pa.ChunkedArray) else items
    names = np.array(items.dictionary.to_pylist(), object)
    item_codes = items.indices.to_numpy(zero_copy_only=False)
    values, times = dataset.values.astype(np.float64), dataset.times
    for row, user_id in enumerate(users):
        rows = order[starts[row] : starts[row + 1]][::-1][:limit]
        moments: list[float | None] = [None] * len(rows) if times is None else times[rows].tolist()
        marks = [None if math.isnan(v) else v for v in values[rows].tolist()]
        yield user_id, _profile(dataset.users, row), History(names[item_codes[rows]].tolist(), marks, moments)


def _by_user(dataset: Dataset) -> tuple[list[str], np.ndarray, np.ndarray]:
    """User ids, interaction positions grouped by user and oldest first, and where each group starts."""
    users = dataset.users.column(USER_ID).to_pylist()
    place = {user_id: row for row, user_id in enumerate(users)}
    encoded = dataset.interactions.column(USER_ID).combine_chunks().dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    lookup = np.array([place[user_id] for user_id in encoded.dictionary.to_pylist()], np.int64)
    rows = lookup[encoded.indices.to_numpy(zero_copy_only=False)] if len(encoded) else np.zeros(0, np.int64)
    times = np.arange(len(rows)) if dataset.times is None else dataset.times
    order = np.lexsort((times, rows))
    return users, order, np.searchsorted(rows[order], np.arange(len(users) + 1))


def _profile(users: pa.Table, row: int) -> dict[str, Any]:
    cells = users.slice(row, 1).to_pylist()[0]
    return {name: value for name, value in cells.items() if name != USER_ID and value is not None}


def _id_bytes(text: str, what: str, field: str) -> bytes:
    if not 0 < len(text) <= MAX_ID_LENGTH:
        raise InvalidRequest(f"{what} has {len(text)} characters; give 1 to {MAX_ID_LENGTH}", field)
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{what} {text[:40]!r} is not valid Unicode text", field) from None


def _checked(event: UserEvent, place: int) -> UserEvent:
    _id_bytes(event.item_id, f"events[{place}].item_id", "events")
    for name in ("value", "time_s"):
        number = getattr(event, name)
        if number is not None and not math.isfinite(number):
            raise InvalidRequest(f"events[{place}].{name} is {number}; give a finite number or leave it out", "events")
    return event
