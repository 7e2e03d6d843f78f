"""What changed of the catalogue since a release was built: one durable, ordered place that every replica reads.

It holds the last state of each changed item, not its history, so it never grows beyond the number of items; a
reader who asks for what is newer than a version misses no item, only states that were replaced meanwhile. An item
that no release holds has a *slot*, a number of its own that is never given again; every process derives the same
item index from it. Deleted items stay, as deleted: a release built before, or after, may hold them.
"""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from configs.errors import Unavailable
from features.event_log_sqlite import BUSY_TIMEOUT_S

SCHEMA = """
CREATE TABLE IF NOT EXISTS items (
    item_id TEXT PRIMARY KEY,
    slot INTEGER NOT NULL UNIQUE,
    version INTEGER NOT NULL UNIQUE,
    deleted INTEGER NOT NULL,
    fields BLOB NOT NULL
)
"""
COLUMNS = "item_id, slot, version, deleted, fields"
PUT = f"""
INSERT INTO items ({COLUMNS})
VALUES (?1, (SELECT COALESCE(MAX(slot), -1) + 1 FROM items), (SELECT COALESCE(MAX(version), 0) + 1 FROM items), ?2, ?3)
ON CONFLICT (item_id) DO UPDATE SET version = excluded.version, deleted = excluded.deleted, fields = excluded.fields
"""


@dataclass(frozen=True)
class ItemChange:
    """An item added or given other values for some fields, or deleted."""

    item_id: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    delete: bool = False


@dataclass(frozen=True)
class ItemState:
    """The last state of a changed item: which fields differ from those that a release has, if it has the item.

    ``version`` rises with every change of any item.
    """

    item_id: str
    slot: int
    version: int
    deleted: bool
    fields: Mapping[str, Any]


class ItemChanges:
    """The changes in one SQLite file, shared by the processes of a host.

    Raises:
        Unavailable: the file cannot be opened; names it.
    """

    def __init__(self, file: Path):
        self._file, self._lock = file, threading.Lock()
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._connection = sqlite3.connect(file, BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute(SCHEMA)
        except (OSError, sqlite3.Error) as error:
            raise self._unavailable(error) from error

    def apply(self, changes: Sequence[ItemChange]) -> int:
        """Make the changes, in order; all or none. They are durable when this returns the version of the last."""
        with self._answering():
            self._connection.execute("BEGIN IMMEDIATE")
            for change in changes:
                fields = {} if change.delete else {**self._fields(change.item_id), **change.fields}
                self._connection.execute(PUT, (change.item_id, int(change.delete), orjson.dumps(fields)))
            version = self._connection.execute("SELECT COALESCE(MAX(version), 0) FROM items").fetchone()[0]
            self._connection.execute("COMMIT")
        return version

    def after(self, version: int, limit: int = 1_000) -> list[ItemState]:
        """Items that changed after a version, in the order of their last changes."""
        with self._answering():
            rows = self._connection.execute(
                f"SELECT {COLUMNS} FROM items WHERE version > ? ORDER BY version LIMIT ?", (version, limit)
            ).fetchall()
        return [ItemState(i, slot, at, bool(gone), orjson.loads(fields)) for i, slot, at, gone, fields in rows]

    def close(self) -> None:
        """Closing twice is harmless."""
        with self._lock:
            self._connection.close()

    def _fields(self, item_id: str) -> dict[str, Any]:
        """What was changed before; an item that was deleted begins anew."""
        row = self._connection.execute("SELECT fields FROM items WHERE item_id = ?", (item_id,)).fetchone()
        return orjson.loads(row[0]) if row else {}

    @contextmanager
    def _answering(self) -> Iterator[None]:
        with self._lock:
            try:
                yield
            except sqlite3.Error as error:
                raise self._unavailable(error) from error
            finally:
                self._roll_back()

    def _roll_back(self) -> None:
        try:
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            return  # gone with whatever broke it

    def _unavailable(self, error: Exception) -> Unavailable:
        return Unavailable(f"item changes {self._file}: {error}; check the path, permissions and the free disk space")
