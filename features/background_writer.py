"""Events written off the request path: a bounded queue and one thread that batches."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from configs.errors import InvalidRequest, RecpoolError

log = logging.getLogger(__name__)

RETRY_AFTER_S = 0.2
"""Pause before the second and last try of a batch that the log could not take."""


class Log(Protocol):
    """What the writer needs of an event log."""

    def append(self, records: Sequence[Mapping[str, Any]]) -> object: ...
    def close(self) -> None: ...


class BackgroundWriter:
    """Hand records over without waiting; what cannot be kept is dropped and counted.

    A record belongs to the writer once handed over and must not be changed after that. So does the
    log, which closes with the writer.

    Args:
        capacity: records waiting at most; beyond that new ones are dropped.
        batch: records written in one transaction at most.
        linger_s: how long the first record of a batch waits for company. The thread wakes once in that time,
            whatever comes; each time it interrupts those who answer requests.
    """

    def __init__(self, event_log: Log, capacity: int = 10_000, batch: int = 256, linger_s: float = 0.05):
        self._log, self._capacity, self._batch, self._linger_s = event_log, capacity, batch, linger_s
        self._records: deque[Mapping[str, Any]] = deque()
        self._came, self._closing, self._lock = threading.Event(), threading.Event(), threading.Lock()
        self._written = self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="event-writer", daemon=True)
        self._thread.start()

    @property
    def written(self) -> int:
        """Records handed to the log, repeats included."""
        return self._written

    @property
    def dropped(self) -> int:
        """Records lost: too many waited, the writer was closed, or the log refused them."""
        return self._dropped

    @property
    def waiting(self) -> int:
        """Records that wait, about."""
        return len(self._records)

    def submit(self, record: Mapping[str, Any]) -> bool:
        """Queue one record; False when it had to be dropped. Never waits and never raises."""
        with self._lock:
            if self._closing.is_set() or len(self._records) >= self._capacity:
                self._dropped += 1
                return False
            self._records.append(record)
        if not self._came.is_set():
            self._came.set()
        return True

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what waits, then stop; a record handed over after this counts as dropped."""
        with self._lock:
            self._closing.set()
        self._came.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.warning("about %d events are still unwritten after %g s", self.waiting, timeout_s)
            return
        self._log.close()

    def _run(self) -> None:
        while self._records or not self._closing.is_set():
            self._came.wait()
            if len(self._records) < self._batch:
                self._closing.wait(self._linger_s)
            # Cleared before the records are taken: whoever comes in between wakes the thread once more.
            self._came.clear()
            while records := self._next_batch():
                self._write(records)

    def _next_batch(self) -> list[Mapping[str, Any]]:
        with self._lock:
            return [self._records.popleft() for _ in range(min(self._batch, len(self._records)))]

    def _write(self, records: list[Mapping[str, Any]]) -> None:
        try:
            self._append(records)
            return
        except InvalidRequest as error:
            # One bad record must not cost the others of its batch.
            if len(records) > 1:
                for record in records:
                    self._write([record])
                return
            reason: Exception = error
        except Exception as error:  # The thread must outlive any failure of a log it does not know.
            reason = error
        self._drop(len(records))
        log.warning("%d events were dropped: %s", len(records), reason)

    def _append(self, records: list[Mapping[str, Any]]) -> None:
        try:
            self._log.append(records)
        except InvalidRequest:
            raise
        except RecpoolError:
            self._closing.wait(RETRY_AFTER_S)
            self._log.append(records)
        with self._lock:
            self._written += len(records)

    def _drop(self, count: int) -> None:
        with self._lock:
            self._dropped += count
