"""A user's row as the bytes the embedded store keeps.

A request wants the profile and, of each past event, which item and which value; a writer wants all. So the
row begins with what requests read, laid out to be read without parsing:

    head    magic, sizes (`_SIZES`)
    events  item hashes [n] uint64, values [n] float64 (NaN where absent): base and live merged
    profile JSON: what the row says of the user
    rest    JSON: the base and the live history, with ids and times

Rows that earlier versions wrote are one JSON object; they are read as well and replaced when written next.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson

from features.id_hashes import id_hashes
from features.store_records import History, UserRecord, encode, merge, user_record

ROW_FORMAT = 2
PROFILE = ("user_id", "features", "updated_at_s", "touched_at_s")
_MAGIC = b"row%d" % ROW_FORMAT
_SIZES = struct.Struct("<4sIQ")
"""Magic, bytes of the profile, number of events; 16 bytes, which keeps the arrays behind aligned."""
_EVENT_BYTES = 16


def write_row(row: Mapping[str, Any], limit: int) -> bytes:
    """Pack a row; raises InvalidRequest when a feature is not a plain value.

    Args:
        row: the keys of `PROFILE`, ``base`` and ``live`` as `History.columns`, ``loaded_at_s``.
        limit: events that requests see.
    """
    history = merged(row, limit)
    profile = encode({name: row[name] for name in PROFILE})
    rest = encode({name: value for name, value in row.items() if name not in PROFILE})
    head = _SIZES.pack(_MAGIC, len(profile), len(history.items))
    return b"".join((head, id_hashes(history.items).tobytes(), history.marks().tobytes(), profile, rest))


def read_row(raw: bytes) -> dict[str, Any]:
    """All of a row, as `write_row` was given it."""
    if not raw.startswith(_MAGIC):
        return orjson.loads(raw)
    _, profile_bytes, events = _SIZES.unpack_from(raw)
    start = _SIZES.size + _EVENT_BYTES * events
    profile, rest = raw[start : start + profile_bytes], raw[start + profile_bytes :]
    return {**orjson.loads(profile), **orjson.loads(rest)}


def read_record(raw: bytes, limit: int) -> tuple[UserRecord, float]:
    """What requests want of a row, and when the row was last touched (seconds since 1970)."""
    if not raw.startswith(_MAGIC):
        row = orjson.loads(raw)
        record = user_record(row["user_id"], row["features"], merged(row, limit), row["updated_at_s"])
        return record, row["touched_at_s"]
    _, profile_bytes, events = _SIZES.unpack_from(raw)
    start, count = _SIZES.size + _EVENT_BYTES * events, min(events, limit)
    hashes = np.frombuffer(raw, np.uint64, count, _SIZES.size)
    values = np.frombuffer(raw, np.float64, count, _SIZES.size + _EVENT_BYTES // 2 * events)
    user_id, features, updated_at_s, touched_at_s = orjson.loads(raw[start : start + profile_bytes]).values()

    def history() -> History:
        return merged(read_row(raw), limit).cut(count)

    return UserRecord(user_id, features, hashes, values, updated_at_s, history), touched_at_s


def merged(row: Mapping[str, Any], limit: int) -> History:
    """The live events and the base history in one."""
    return merge(History(*row["live"]), History(*row["base"]), limit)
