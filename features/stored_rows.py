"""A user's row as the bytes the embedded store keeps.

A request wants the profile and, of each past event, which item and which value; a writer that adds an event
wants to know little more. So the row begins with what requests read, laid out to be read without parsing, and
what a writer only carries along lies apart from what it changes:

    head    magic, sizes (`_SIZES`)
    events  item hashes [n] uint64, values [n] float64 (NaN where absent), times [n] float64 (seconds since 1970,
            NaN where absent): base and live merged
    profile JSON: what the row says of the user
    live    JSON: the live history, with ids and times
    rest    JSON: the base history, and when it was loaded

Rows that earlier versions wrote are read as well and replaced when written next: one JSON object, or ("row2") a
head without times and live and base in one piece.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import orjson

from features.id_hashes import id_hashes
from features.store_records import History, UserRecord, encode, merge, user_record

ROW_FORMAT = 3
PROFILE = ("user_id", "features", "updated_at_s", "touched_at_s")
_MAGIC, _OLD_MAGIC = b"row%d" % ROW_FORMAT, b"row2"
_SIZES = struct.Struct("<4sII4xQ")
"""Magic, bytes of the profile, bytes of the live history, number of events; 24 bytes, which keeps the arrays
behind aligned."""
_OLD_SIZES = struct.Struct("<4sIQ")
"""Magic, bytes of the profile, number of events."""
_NUMBER_BYTES = 8


class _Layout(NamedTuple):
    """Where the parts of a row begin, in bytes, and how many events it has; ``times`` is 0 where there are none."""

    events: int
    hashes: int
    values: int
    times: int
    profile: int
    live: int
    rest: int

    @classmethod
    def of(cls, raw: bytes) -> _Layout:
        if raw.startswith(_OLD_MAGIC):
            _, profile_bytes, events = _OLD_SIZES.unpack_from(raw)
            start, column = _OLD_SIZES.size, _NUMBER_BYTES * events
            profile = start + 2 * column
            return cls(events, start, start + column, 0, profile, profile + profile_bytes, profile + profile_bytes)
        _, profile_bytes, live_bytes, events = _SIZES.unpack_from(raw)
        start, column = _SIZES.size, _NUMBER_BYTES * events
        profile = start + 3 * column
        live = profile + profile_bytes
        return cls(events, start, start + column, start + 2 * column, profile, live, live + live_bytes)


def write_row(row: Mapping[str, Any], limit: int) -> bytes:
    """Pack a row; raises InvalidRequest when a feature is not a plain value.

    Args:
        row: the keys of `PROFILE`, ``base`` and ``live`` as `History.columns`, ``loaded_at_s``.
        limit: events that requests see.
    """
    history = merged(row, limit)
    rest = encode({name: value for name, value in row.items() if name not in (*PROFILE, "live")})
    columns = id_hashes(history.items).tobytes(), history.marks().tobytes(), history.moments().tobytes()
    return _packed(len(history.items), columns, {name: row[name] for name in PROFILE}, row["live"], rest)


def appended(raw: bytes, newer: History, now_s: float, limit: int) -> bytes | None:
    """The row with events in front, without a look at those that lie behind; None where that would be wrong.

    It is right when all are later than what the row holds. Costs a tenth of reading and writing the row.

    Args:
        newer: most recent first, with times.
        now_s: when the row is touched, seconds since 1970.
    """
    if not raw.startswith(_MAGIC):
        return None
    layout = _Layout.of(raw)
    times = np.frombuffer(raw, np.float64, layout.events, layout.times)
    newer = merge(newer, History.empty(), limit)
    if not newer.items or (layout.events and newer.moments()[-1] <= times[0]):
        return None
    profile = orjson.loads(raw[layout.profile : layout.live])
    live = [(new + old)[:limit] for new, old in zip(newer.columns(), _live(raw, layout), strict=True)]
    values = np.frombuffer(raw, np.float64, layout.events, layout.values)
    hashes = np.frombuffer(raw, np.uint64, layout.events, layout.hashes)
    in_front = id_hashes(newer.items), newer.marks(), newer.moments()
    columns = [np.concatenate(both)[:limit] for both in zip(in_front, (hashes, values, times), strict=True)]
    packed = tuple(column.tobytes() for column in columns)
    return _packed(len(columns[0]), packed, profile | {"touched_at_s": now_s}, live, raw[layout.rest :])


def read_row(raw: bytes) -> dict[str, Any]:
    """All of a row, as `write_row` was given it."""
    if not raw.startswith((_MAGIC, _OLD_MAGIC)):
        return orjson.loads(raw)
    layout = _Layout.of(raw)
    row = orjson.loads(raw[layout.profile : layout.live]) | orjson.loads(raw[layout.rest :])
    return row if raw.startswith(_OLD_MAGIC) else row | {"live": _live(raw, layout)}


def touched_at_s(raw: bytes) -> float:
    """When the row was last written, seconds since 1970."""
    if not raw.startswith((_MAGIC, _OLD_MAGIC)):
        return orjson.loads(raw)["touched_at_s"]
    layout = _Layout.of(raw)
    return orjson.loads(raw[layout.profile : layout.live])["touched_at_s"]


def read_record(raw: bytes, limit: int) -> tuple[UserRecord, float]:
    """What requests want of a row, and when the row was last touched (seconds since 1970)."""
    if not raw.startswith((_MAGIC, _OLD_MAGIC)):
        row = orjson.loads(raw)
        record = user_record(row["user_id"], row["features"], merged(row, limit), row["updated_at_s"])
        return record, row["touched_at_s"]
    layout = _Layout.of(raw)
    count = min(layout.events, limit)
    hashes = np.frombuffer(raw, np.uint64, count, layout.hashes)
    values = np.frombuffer(raw, np.float64, count, layout.values)
    user_id, features, updated_at_s, touched_s = orjson.loads(raw[layout.profile : layout.live]).values()

    def history() -> History:
        return merged(read_row(raw), limit).cut(count)

    return UserRecord(user_id, features, hashes, values, updated_at_s, history), touched_s


def merged(row: Mapping[str, Any], limit: int) -> History:
    """The live events and the base history in one."""
    return merge(History(*row["live"]), History(*row["base"]), limit)


def _packed(events: int, columns: tuple[bytes, ...], profile: Any, live: Any, rest: bytes) -> bytes:
    about, own = encode(profile), encode(live)
    return b"".join((_SIZES.pack(_MAGIC, len(about), len(own), events), *columns, about, own, rest))


def _live(raw: bytes, layout: _Layout) -> list[list[Any]]:
    return orjson.loads(raw[layout.live : layout.rest])
