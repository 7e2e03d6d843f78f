"""The feature store in a memory-mapped LMDB file: no server, many processes on one host.

A write is one transaction, so another process sees all of it at its next fetch or none of it. A
crash of the machine may lose the last writes and never harms the file.
"""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

import lmdb

from configs.errors import Unavailable
from configs.settings import StoreSettings
from features.datasets import Dataset
from features.store_records import (
    History,
    UserEvent,
    UserRecord,
    is_left_over,
    load_rows,
    merge,
    user_key,
)
from features.stored_rows import appended, read_record, read_row, touched_at_s, write_row

MAP_BYTES = 64 << 30
"""Address space reserved; the file on disk grows only with what is stored."""
LONGEST_KEY = 480
"""LMDB takes keys up to 511 bytes; longer ids are hashed and the row keeps the id itself."""
FIRST_KEY = b"\0"
"""Sorts before every key."""
LOAD_BATCH = 20_000
"""Users written in one transaction of a bulk load."""
SWEEP_BATCH = 2_000
"""Rows looked at in one transaction of a sweep; other writers wait that long."""
READERS = 1024


class EmbeddedStore:
    """User rows in one LMDB environment.

    Args:
        folder: made when absent; may be open in several processes and several times in one. Open it after
            a fork, not before.
        clock: seconds since 1970 UTC.
    Raises:
        Unavailable: the folder cannot be opened; names it.
    """

    def __init__(self, settings: StoreSettings, folder: Path, clock: Callable[[], float] = time.time):
        self._limit, self._ttl_s, self._clock = settings.history_limit, settings.ttl_s, clock
        self._folder, self._closed = folder, False
        self._environment = _Environments.acquire(folder)

    def fetch(self, user_ids: Sequence[str]) -> list[UserRecord | None]:
        """Rows in the order asked, None for a user that is absent or expired."""
        keys = [_key(user_id) for user_id in user_ids]
        with self._transaction() as transaction:
            raws = [transaction.get(key) for key in keys]
        return [None if raw is None else self._record(bytes(raw)) for raw in raws]

    def record(self, user_id: str, events: Sequence[UserEvent]) -> None:
        """Add events, oldest first; visible to every process when the call returns."""
        self.record_many({user_id: events})

    def record_many(self, events: Mapping[str, Sequence[UserEvent]]) -> None:
        """Add events of many users in one transaction: one disk flush for all, and all or none of them."""
        now_s = self._clock()
        added = [(user_id, _key(user_id), History.of(of_user, now_s)) for user_id, of_user in events.items()]
        with self._transaction(write=True) as transaction:
            for user_id, key, newer in added:
                raw = transaction.get(key)
                transaction.put(key, self._with_events(user_id, bytes(raw) if raw else None, newer, now_s))

    def put(self, user_id: str, features: Mapping[str, Any]) -> None:
        """Replace the profile; the history stays."""
        profile = {"features": dict(features), "updated_at_s": self._clock(), "loaded_at_s": None}
        self._change(user_id, lambda row: row.update(profile))

    def load(self, dataset: Dataset, progress: Callable[[float], None] | None = None) -> int:
        """Write every user of a dataset, then drop expired rows and left-over ones; returns the users' number.

        May be repeated, also while serving: profiles and base histories are replaced, live events
        kept. A load that was cut short leaves whole rows only.
        """
        rows, done, began_s = load_rows(dataset, self._limit), 0, self._clock()
        while batch := list(islice(rows, LOAD_BATCH)):
            with self._transaction(write=True) as transaction:
                for user_id, features, base in batch:
                    self._load_row(transaction, user_id, features, base, began_s)
            done += len(batch)
            if progress:
                progress(done / len(dataset.users))
        self._sweep(began_s)
        return done

    def close(self) -> None:
        """Let go of the file; closing twice is harmless."""
        if not self._closed:
            self._closed = True
            _Environments.release(self._environment)

    def _with_events(self, user_id: str, raw: bytes | None, newer: History, now_s: float) -> bytes:
        """The user's row with more live events."""
        if raw is not None and self._ttl_s and self._expired(touched_at_s(raw)):
            raw = None
        row = appended(raw, newer, now_s, self._limit) if raw else None
        if row is not None:
            return row
        whole = read_row(raw) if raw else _blank(user_id, now_s)
        live = merge(newer, History(*whole["live"]), self._limit).columns()
        return write_row(whole | {"live": live, "touched_at_s": now_s}, self._limit)

    def _load_row(
        self, transaction: lmdb.Transaction, user_id: str, features: Mapping[str, Any], base: History, began_s: float
    ) -> None:
        key = _key(user_id)
        row = self._read(transaction, key) or _blank(user_id, 0.0)
        now_s = self._clock()
        row |= {"features": features, "base": base.columns(), "updated_at_s": now_s, "touched_at_s": now_s}
        row["loaded_at_s"] = began_s
        transaction.put(key, write_row(row, self._limit))

    def _sweep(self, began_s: float) -> None:
        """Drop rows that have expired or are left over from before the load that began at ``began_s``."""
        following = FIRST_KEY
        while following:
            with self._transaction(write=True) as transaction:
                cursor = transaction.cursor()
                cursor.set_range(following)
                for _ in range(SWEEP_BATCH):
                    if not cursor.key():
                        break
                    row = read_row(bytes(cursor.value()))
                    gone = self._expired(row["touched_at_s"]) or (is_left_over(row, began_s) and not any(row["live"]))
                    # Deleting moves on by itself.
                    cursor.delete() if gone else cursor.next()
                following = bytes(cursor.key())

    def _change(self, user_id: str, change: Callable[[dict[str, Any]], None]) -> None:
        key, now_s = _key(user_id), self._clock()
        with self._transaction(write=True) as transaction:
            row = self._read(transaction, key) or _blank(user_id, now_s)
            change(row)
            row["touched_at_s"] = now_s
            transaction.put(key, write_row(row, self._limit))

    def _read(self, transaction: lmdb.Transaction, key: bytes) -> dict[str, Any] | None:
        raw = transaction.get(key)
        if raw is None:
            return None
        row = read_row(bytes(raw))
        return None if self._expired(row["touched_at_s"]) else row

    def _record(self, raw: bytes) -> UserRecord | None:
        record, touched_at_s = read_record(raw, self._limit)
        return None if self._expired(touched_at_s) else record

    def _expired(self, touched_at_s: float) -> bool:
        return self._ttl_s is not None and self._clock() - touched_at_s > self._ttl_s

    @contextmanager
    def _transaction(self, write: bool = False) -> Iterator[lmdb.Transaction]:
        try:
            with self._environment.begin(write=write) as transaction:
                yield transaction
        except lmdb.Error as error:
            raise _unavailable(self._folder, error) from error


class _Environments:
    """Open environments of this process; LMDB allows one per file and process."""

    _lock = threading.Lock()
    _open: dict[tuple[int, str], tuple[lmdb.Environment, int]] = {}

    @classmethod
    def acquire(cls, folder: Path) -> lmdb.Environment:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # The process id keeps a forked child from using its parent's environment.
            key = (os.getpid(), str(folder.resolve()))
            with cls._lock:
                environment, users = cls._open.get(key) or (_open_environment(key[1]), 0)
                cls._open[key] = (environment, users + 1)
                return environment
        except (OSError, lmdb.Error) as error:
            raise _unavailable(folder, error) from error

    @classmethod
    def release(cls, environment: lmdb.Environment) -> None:
        with cls._lock:
            for key, (known, users) in list(cls._open.items()):
                if known is not environment:
                    continue
                if users > 1:
                    cls._open[key] = (known, users - 1)
                else:
                    del cls._open[key]
                    known.close()


def _open_environment(folder: str) -> lmdb.Environment:
    # Without metasync a commit costs one disk flush; only the last one can be lost, never the file.
    environment = lmdb.open(folder, map_size=MAP_BYTES, metasync=False, max_readers=READERS)
    environment.reader_check()
    return environment


def _unavailable(folder: Path | str, error: Exception) -> Unavailable:
    return Unavailable(f"feature store {folder}: {error}; check the folder, its permissions and the free disk space")


def _key(user_id: str) -> bytes:
    """b"i" and the id, or b"h" and its SHA-256 when it is too long for LMDB."""
    key = user_key(user_id)
    return b"i" + key if len(key) <= LONGEST_KEY else b"h" + hashlib.sha256(key).digest()


def _blank(user_id: str, now_s: float) -> dict[str, Any]:
    empty = History.empty().columns()
    return {
        "user_id": user_id,
        "features": {},
        "base": empty,
        "live": empty,
        "updated_at_s": now_s,
        "touched_at_s": now_s,
        "loaded_at_s": None,
    }
