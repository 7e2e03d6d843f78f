"""Many callers, one commit: events that are durable, and in their users' histories, before anyone is told so."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from configs.errors import InvalidRequest, Overloaded, RecpoolError, Unavailable
from features.event_log import EventLog, LoggedEvent
from features.event_log_histories import Histories, bring

log = logging.getLogger(__name__)

Record = Mapping[str, Any]

MOST_AT_ONCE = 4_000
"""Events of one commit, give or take a batch."""
ROUND_S = 1.0
"""How often events are looked for that somebody logged and nobody brought to the store."""
OVERDUE_S = 3.0
"""Age from which that is so; until then whoever logged them is about to."""
STORE_RETRY_S = 0.5
"""After the store failed it is left alone that long: each try may cost its whole time limit."""
REPLAYED_AT_ONCE = 1_000


@dataclass(frozen=True)
class Kept:
    """What became of a batch: ``new`` [n], False for a repeat; whether its events are in the histories by now."""

    new: list[bool]
    in_store: bool


@dataclass(frozen=True)
class _Batch:
    records: Sequence[Record]
    future: Future[Kept]


class GroupCommit:
    """One thread that writes whatever waits as one transaction of the log and one of the store.

    While one commit is on its way those who come next gather for the next: nothing lingers, and a flush of the
    disk serves everybody who waited for it. The log comes first. What the store does not take, because it is
    away or this process dies in between, stays marked in the log, and any process that writes to the log brings
    it to the store later.

    Args:
        capacity: events that may wait; beyond that batches are refused.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        event_log: EventLog,
        store: Histories,
        capacity: int = 20_000,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._log, self._store, self._capacity, self._clock = event_log, store, capacity, clock
        self._batches: deque[_Batch] = deque()
        self._waiting = 0
        self._came, self._lock, self._closing = threading.Event(), threading.Lock(), False
        self._store_after_s = self._round_s = 0.0
        self.counts = {"accepted": 0, "repeated": 0, "brought_later": 0, "commits": 0}
        self._thread = threading.Thread(target=self._run, name="event-commits", daemon=True)
        self._thread.start()

    @property
    def store_is_away(self) -> bool:
        """Whether the last try to reach the store failed, so that events wait for it in the log."""
        return self._store_after_s > 0

    def submit(self, records: Sequence[Record]) -> Future[Kept]:
        """Keep the records; the future ends when all are durable, or none is.

        Its exception is InvalidRequest for a record the log does not take, or Unavailable when the log does not
        answer; sending the same records again is then right and harmless.

        Raises:
            Overloaded: too much waits. Unavailable: closed.
        """
        batch = _Batch(records, Future())
        with self._lock:
            if self._closing:
                raise Unavailable("the event log is closed; another replica takes events")
            if self._waiting + len(records) > self._capacity and self._waiting:
                raise Overloaded(f"{self._waiting} events wait for the log; send fewer", 1.0)
            self._batches.append(batch)
            self._waiting += len(records)
        self._came.set()
        return batch.future

    def close(self, timeout_s: float = 5.0) -> None:
        """Write what waits, then stop."""
        with self._lock:
            self._closing = True
        self._came.set()
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            log.warning("%d events still wait for the log after %g s", self._waiting, timeout_s)
            return
        try:
            self._log.flush()
        except RecpoolError as error:
            log.warning("the log did not note what is in the store: %s", error.message)
        self._log.close()

    def _run(self) -> None:
        while self._batches or not self._closing:
            self._came.wait(ROUND_S)
            self._came.clear()
            while self._batches:
                if batches := self._next():
                    self._commit(batches)
                self._maybe_catch_up()
            self._maybe_catch_up()

    def _next(self) -> list[_Batch]:
        taken: list[_Batch] = []
        with self._lock:
            size = 0
            while self._batches and size < MOST_AT_ONCE:
                taken.append(self._batches.popleft())
                size += len(taken[-1].records)
            self._waiting -= size
        # From here on a caller who leaves cannot take it back.
        return [batch for batch in taken if batch.future.set_running_or_notify_cancel()]

    def _commit(self, batches: Sequence[_Batch]) -> None:
        records = [record for batch in batches for record in batch.records]
        try:
            positions = self._log.append(records)
        except InvalidRequest as error:
            if len(batches) == 1:
                batches[0].future.set_exception(error)
                return
            for batch in batches:  # one bad record must not cost the others
                self._commit([batch])
            return
        except Exception as error:  # the thread must outlive any failure of a log; each caller is told
            for batch in batches:
                batch.future.set_exception(error if isinstance(error, RecpoolError) else Unavailable(f"{error!r:.200}"))
            return
        self._answer(batches, positions, self._bring(records, positions))

    def _answer(self, batches: Sequence[_Batch], positions: Sequence[int | None], in_store: bool) -> None:
        start, new = 0, [position is not None for position in positions]
        self.counts["commits"] += 1
        self.counts["accepted"] += sum(new)
        self.counts["repeated"] += len(new) - sum(new)
        for batch in batches:
            end = start + len(batch.records)
            batch.future.set_result(Kept(new[start:end], in_store))
            start = end

    def _bring(self, records: Sequence[Record], positions: Sequence[int | None]) -> bool:
        """Bring events to the store; False when it did not take them, or was not asked."""
        pairs = [(r, p) for r, p in zip(records, positions, strict=True) if r.get("pending")]
        repeated = [record["event_id"] for record, position in pairs if position is None]
        events = [_logged(record, position) for record, position in pairs if position is not None]
        try:
            # Whoever logged a repeated one may have died before it was in the store.
            left = self._log.pending(repeated) if repeated else []
            own = {event.position for event in events}
            return self._into_store(events + [event for event in left if event.position not in own])
        except Exception as error:  # the events are kept; that they are late in the store is said and mended
            log.warning("events wait for the feature store: %s", error)
            return False

    def _into_store(self, events: Sequence[LoggedEvent]) -> bool:
        if not events:
            return True
        if self._clock() < self._store_after_s:
            return False
        try:
            bring(self._store, events)
        except Unavailable:
            self._store_after_s = self._clock() + STORE_RETRY_S
            raise
        self._store_after_s = 0.0
        self._log.settle([event.position for event in events])
        return True

    def _maybe_catch_up(self) -> None:
        """Bring what was left behind, by whomever, a bounded part at a time."""
        if self._clock() < self._round_s:
            return
        self._round_s = self._clock() + ROUND_S
        try:
            events = self._log.overdue(OVERDUE_S, REPLAYED_AT_ONCE)
            if self._into_store(events):
                self._log.flush()
                self.counts["brought_later"] += len(events)
                if len(events) == REPLAYED_AT_ONCE:
                    self._round_s = 0.0
        except Exception as error:  # tried again in a second
            log.warning("events are not brought to the feature store: %s", error)


def _logged(record: Record, position: int) -> LoggedEvent:
    values = (record[name] for name in ("event_id", "kind", "time_s", "user_id", "payload"))
    return LoggedEvent(position, *values)
