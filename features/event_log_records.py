"""What an event log keeps, and the rules its implementations share.

A record is a mapping with ``event_id`` (unique; a repeat is ignored), ``kind``, ``time_s`` (seconds
since 1970 UTC), ``user_id`` (None for an anonymous caller), ``payload`` (anything JSON holds) and, where
it also has to be brought to the feature store, ``pending`` (true).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from configs.errors import InvalidRequest


@dataclass(frozen=True)
class LoggedEvent:
    """One kept record; ``position`` grows in the order of writing."""

    position: int
    event_id: str
    kind: str
    time_s: float
    user_id: str | None
    payload: Any

    @classmethod
    def of(cls, position: int, event_id: str, kind: str, time_s: float, user_id: str | None, payload: bytes):
        """From what a log holds: the payload as JSON."""
        return cls(position, event_id, kind, time_s, user_id, orjson.loads(payload))


Row = tuple[str, str, float, str | None, bytes]
"""event_id, kind, time_s, user_id and the payload as JSON."""


def checked_row(record: Mapping[str, Any], place: int) -> Row:
    """Raises InvalidRequest when the record at this place of a batch lacks a field or holds the wrong type."""
    for name in ("event_id", "kind"):
        if not isinstance(record.get(name), str) or not record[name]:
            raise _wrong(place, name, record.get(name), "a non-empty string")
    time_s, user_id = record.get("time_s"), record.get("user_id")
    if isinstance(time_s, bool) or not isinstance(time_s, int | float) or not math.isfinite(time_s):
        raise _wrong(place, "time_s", time_s, "seconds since 1970 UTC")
    if user_id is not None and not isinstance(user_id, str):
        raise _wrong(place, "user_id", user_id, "a string or None")
    try:
        payload = orjson.dumps(record.get("payload"), option=orjson.OPT_SERIALIZE_NUMPY)
        # Logs keep text as UTF-8, which half a surrogate pair is not.
        "".join((record["event_id"], record["kind"], user_id or "")).encode()
    except (TypeError, UnicodeEncodeError) as error:
        raise InvalidRequest(f"records[{place}] cannot be written as JSON and UTF-8 ({error})", "records") from None
    return record["event_id"], record["kind"], float(time_s), user_id, payload


def _wrong(place: int, name: str, found: Any, expected: str) -> InvalidRequest:
    return InvalidRequest(f"records[{place}].{name} is {found!r:.60}; give {expected}", "records")
