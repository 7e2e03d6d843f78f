"""What happened, kept for training and analysis: impressions now, further kinds of event the same way.

A record is a mapping with ``event_id`` (unique; a repeat is ignored), ``kind``, ``time_s`` (seconds
since 1970 UTC), ``user_id`` (None for an anonymous caller) and ``payload`` (anything JSON holds).
"""

from __future__ import annotations

import math
import sqlite3
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson

from configs.errors import InvalidRequest, Unavailable

BUSY_TIMEOUT_S = 5.0
"""How long a writer waits for another process's transaction."""

SCHEMA = """
CREATE TABLE IF NOT EXISTS events (
    position INTEGER PRIMARY KEY AUTOINCREMENT,
    event_id TEXT NOT NULL UNIQUE,
    kind TEXT NOT NULL,
    time_s REAL NOT NULL,
    user_id TEXT,
    payload BLOB NOT NULL
)
"""
INSERT = """
INSERT INTO events (event_id, kind, time_s, user_id, payload) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""
SELECT = """
SELECT position, event_id, kind, time_s, user_id, payload FROM events
WHERE position > ? AND (? IS NULL OR kind = ?) ORDER BY position LIMIT ?
"""


class EventLog(Protocol):
    """Somewhere records go and stay."""

    def append(self, records: Sequence[Mapping[str, Any]]) -> None:
        """Keep all records or, on an error, none.

        Raises:
            InvalidRequest: a record lacks a field or holds the wrong type; names position and field.
            Unavailable: the log cannot be written now.
        """
        ...

    def close(self) -> None: ...


@dataclass(frozen=True)
class LoggedEvent:
    """One kept record; ``position`` grows in the order of writing."""

    position: int
    event_id: str
    kind: str
    time_s: float
    user_id: str | None
    payload: Any


class SqliteEventLog:
    """Records in one SQLite file, written by any number of threads and processes of one host.

    A batch is one transaction. A crash of the machine may lose the last batches, never the file.

    Raises:
        Unavailable: the file cannot be opened; names it.
    """

    def __init__(self, file: Path):
        self._file, self._lock = file, threading.Lock()
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            # Transactions are opened and ended below, by name.
            self._connection = sqlite3.connect(file, BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = NORMAL")
            self._connection.execute(SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise self._unavailable(error) from error

    def append(self, records: Sequence[Mapping[str, Any]]) -> None:
        """See `EventLog.append`."""
        rows = [_row(record, place) for place, record in enumerate(records)]
        if not rows:
            return
        with self._lock:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                self._connection.executemany(INSERT, rows)
                self._connection.execute("COMMIT")
            except sqlite3.Error as error:
                self._roll_back()
                raise self._unavailable(error) from error

    def read(self, after: int = 0, limit: int = 1000, kind: str | None = None) -> list[LoggedEvent]:
        """The next events behind a position, in the order of writing."""
        with self._lock:
            try:
                rows = self._connection.execute(SELECT, (after, kind, kind, limit)).fetchall()
            except sqlite3.Error as error:
                raise self._unavailable(error) from error
        return [LoggedEvent(*row[:5], payload=orjson.loads(row[5])) for row in rows]

    def close(self) -> None:
        """Closing twice is harmless."""
        with self._lock:
            self._connection.close()

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            # The transaction is gone with whatever broke it, and the first error says more.
            return

    def _unavailable(self, error: Exception) -> Unavailable:
        return Unavailable(f"event log {self._file}: {error}; check the path, its permissions and the free disk space")


def _row(record: Mapping[str, Any], place: int) -> tuple[str, str, float, str | None, bytes]:
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
        # SQLite stores text as UTF-8, which half a surrogate pair is not.
        "".join((record["event_id"], record["kind"], user_id or "")).encode()
    except (TypeError, UnicodeEncodeError) as error:
        raise InvalidRequest(f"records[{place}] cannot be written as JSON and UTF-8 ({error})", "records") from None
    return record["event_id"], record["kind"], float(time_s), user_id, payload


def _wrong(place: int, name: str, found: Any, expected: str) -> InvalidRequest:
    return InvalidRequest(f"records[{place}].{name} is {found!r:.60}; give {expected}", "records")
