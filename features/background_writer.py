"""Events written off the request path: a bounded queue and one thread that batches."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Mapping
from typing import Any

from configs.errors import InvalidRequest, RecpoolError
from features.event_log import EventLog

log = logging.getLogger(__name__)

RETRY_AFTER_S = 0.2
"""Pause before the second and last try of a batch that the log could not take."""


class BackgroundWriter:
    """Hand records over without waiting; what cannot be kept is dropped and counted.

    A record belongs to the writer once handed over and must not be changed after that. So does the
    log, which closes with the writer.

    Args:
        capacity: records waiting at most; beyond that new ones are dropped.
        batch: records written in one transaction at most.
        linger_s: how long the first record of a batch waits for company.
    """

    def __init__(self, event_log: EventLog, capacity: int = 10_000, batch: int = 256, linger_s: float = 0.05):
        self._log, self._batch, self._linger_s = event_log, batch, linger_s
        self._queue: queue.Queue[Mapping[str, Any]] = queue.Queue(capacity)
        self._closing, self._lock = threading.Event(), threading.Lock()
        self._written = self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="event-writer", daemon=True)
        self._thread.start()

    @property
    def written(self) -> int:
        """Records handed to the log, repeats included."""
        return self._written

    @property
    def dropped(self) -> int:
        """Records lost: the queue was full or closed, or the log refused them."""
        return self._dropped

    @property
    def waiting(self) -> int:
        """Records in the queue, about."""
        return self._queue.qsize()

    def submit(self, record: Mapping[str, Any]) -> bool:
        """Queue one record; False when it had to be dropped. Never waits and never raises."""
        if not self._closing.is_set():
            try:
                self._queue.put_nowait(record)
                return True
            except queue.Full:
                pass
        self._drop(1)
        return False

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what waits, then stop; a record handed over after this counts as dropped."""
        self._closing.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.warning("about %d events are still unwritten after %g s", self.waiting, timeout_s)
            return
        self._drop(len(self._drain(self._queue.qsize())))
        self._log.close()

    def _run(self) -> None:
        while not (self._closing.is_set() and self._queue.empty()):
            if records := self._next_batch():
                self._write(records)

    def _next_batch(self) -> list[Mapping[str, Any]]:
        try:
            first = self._queue.get(timeout=self._linger_s)
        except queue.Empty:
            return []
        if not self._closing.is_set() and self._queue.qsize() < self._batch:
            time.sleep(self._linger_s)
        return [first, *self._drain(self._batch - 1)]

    def _drain(self, most: int) -> list[Mapping[str, Any]]:
        records = []
        while len(records) < most:
            try:
                records.append(self._queue.get_nowait())
            except queue.Empty:
                break
        return records

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
