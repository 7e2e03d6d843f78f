"""The event log in one SQLite file: no server, many threads and processes of one host."""

from __future__ import annotations

import sqlite3
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from configs.errors import Unavailable
from features.event_log_records import LoggedEvent, Row, checked_row

BUSY_TIMEOUT_S = 5.0
"""How long a writer waits for another process's transaction."""
ASKED_AT_ONCE = 500
"""Ids in one query; SQLite takes some thousands."""
CHECKPOINT_PAGES = 4_000
"""Pages of 4 KiB that gather in the write-ahead file before they are moved; each move holds up a commit."""

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
PENDING_SCHEMA = "CREATE TABLE IF NOT EXISTS pending (position INTEGER PRIMARY KEY, since_s REAL NOT NULL)"
INSERT = """
INSERT INTO events (event_id, kind, time_s, user_id, payload) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
"""
COLUMNS = "position, event_id, kind, time_s, user_id, payload"
SELECT = f"SELECT {COLUMNS} FROM events WHERE position > ? AND (? IS NULL OR kind = ?) ORDER BY position LIMIT ?"
SELECT_PENDING = f"SELECT {COLUMNS} FROM pending JOIN events USING (position) WHERE "


class SqliteEventLog:
    """Records in one SQLite file.

    A batch is one transaction.

    Args:
        durable: what `append` has returned from outlasts a crash of the machine, too; else only the file
            does, and the last batches may be lost. A process that is killed never loses anything.
        clock: seconds since 1970.
    Raises:
        Unavailable: the file cannot be opened; names it.
    """

    def __init__(self, file: Path, durable: bool = True, clock: Callable[[], float] = time.time):
        self._file, self._lock, self._clock = file, threading.Lock(), clock
        self._settled: list[int] = []
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            # Transactions are opened and ended below, by name.
            self._connection = sqlite3.connect(file, BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute(f"PRAGMA synchronous = {'FULL' if durable else 'NORMAL'}")
            self._connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
            self._connection.execute(SCHEMA)
            self._connection.execute(PENDING_SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise self._unavailable(error) from error

    def append(self, records: Sequence[Mapping[str, Any]]) -> list[int | None]:
        """See `EventLog.append`."""
        rows = [checked_row(record, place) for place, record in enumerate(records)]
        if not rows:
            return []
        pending = [bool(record.get("pending")) for record in records]
        with self._transaction() as cursor:
            self._forget_settled(cursor)
            return self._insert(cursor, rows, pending)

    def find(self, event_ids: Sequence[str]) -> dict[str, LoggedEvent]:
        """See `EventLog.find`."""
        rows = self._among(f"SELECT {COLUMNS} FROM events WHERE event_id IN ", event_ids)
        return {event.event_id: event for event in rows}

    def read(self, after: int = 0, limit: int = 1000, kind: str | None = None) -> list[LoggedEvent]:
        """The next events behind a position, in the order of writing."""
        return self._query(SELECT, (after, kind, kind, limit))

    def pending(self, event_ids: Sequence[str]) -> list[LoggedEvent]:
        """See `EventLog.pending`."""
        return self._among(SELECT_PENDING + "event_id IN ", event_ids)

    def overdue(self, older_than_s: float, limit: int = 1000) -> list[LoggedEvent]:
        """See `EventLog.overdue`."""
        before_s = self._clock() - older_than_s
        return self._query(SELECT_PENDING + "since_s <= ? ORDER BY position LIMIT ?", (before_s, limit))

    def settle(self, positions: Sequence[int]) -> None:
        """See `EventLog.settle`. Written with the next batch, or by `flush`."""
        with self._lock:
            self._settled += positions

    def flush(self) -> None:
        """Write now what `settle` was told."""
        if self._settled:
            with self._transaction() as cursor:
                self._forget_settled(cursor)

    def close(self) -> None:
        """Closing twice is harmless."""
        with self._lock:
            self._connection.close()

    def _insert(self, cursor: sqlite3.Cursor, rows: Sequence[Row], pending: Sequence[bool]) -> list[int | None]:
        """The position of each row that is new."""
        kept: list[int | None] = []
        for row in rows:
            cursor.execute(INSERT, row)
            kept.append(cursor.lastrowid if cursor.rowcount == 1 else None)
        now_s = self._clock()
        waiting = [(each, now_s) for each, waits in zip(kept, pending, strict=True) if waits and each is not None]
        cursor.executemany("INSERT INTO pending (position, since_s) VALUES (?, ?)", waiting)
        return kept

    def _forget_settled(self, cursor: sqlite3.Cursor) -> None:
        # A transaction that fails leaves them pending: what is brought to the store twice counts once there.
        settled, self._settled = self._settled, []
        cursor.executemany("DELETE FROM pending WHERE position = ?", [(position,) for position in settled])

    def _among(self, question: str, event_ids: Sequence[str]) -> list[LoggedEvent]:
        """Answers to a question that ends in ``IN``."""
        found = []
        for start in range(0, len(event_ids), ASKED_AT_ONCE):
            some = event_ids[start : start + ASKED_AT_ONCE]
            found += self._query(f"{question}({','.join('?' * len(some))})", some)
        return found

    def _query(self, question: str, values: Sequence[Any]) -> list[LoggedEvent]:
        with self._lock:
            try:
                rows = self._connection.execute(question, values).fetchall()
            except (sqlite3.Error, UnicodeEncodeError) as error:
                raise self._unavailable(error) from error
        return [LoggedEvent.of(*row) for row in rows]

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Cursor]:
        with self._lock:
            try:
                cursor = self._connection.cursor()
                cursor.execute("BEGIN IMMEDIATE")
                yield cursor
                cursor.execute("COMMIT")
            except sqlite3.Error as error:
                self._roll_back()
                raise self._unavailable(error) from error

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            # The transaction is gone with whatever broke it, and the first error says more.
            return

    def _unavailable(self, error: Exception) -> Unavailable:
        return Unavailable(f"event log {self._file}: {error}; check the path, its permissions and the free disk space")
