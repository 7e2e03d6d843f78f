"""Concurrent requests as one batch, with no wait added: work starts as soon as a lane is free.

While a batch runs, those who arrive queue up and form the next one. An idle service therefore
answers a single request at once, and a busy one shares the cost of a batch. When there are more than
one batch holds, higher priorities go first, and within a priority those who came first.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from configs.errors import DeadlineExceeded
from serving.lanes import RunBatch
from serving.preparation import Row
from serving.priority import Priority
from serving.types import Slate


@dataclass(frozen=True, eq=False)
class Work:
    """One kind of request to one release: only rows of the same work share a batch.

    Attributes:
        kind: what its cost is learnt under.
        run: answers rows, in order.
    """

    kind: str
    run: RunBatch


class Book(Protocol):
    """Whoever keeps account of what waits and what runs; see `serving.admission.Admission`."""

    def queued(self, kind: str, priority: Priority, now_s: float) -> None: ...

    def dequeued(self, kind: str, priority: Priority) -> None: ...

    def most_rows(self, kind: str, now_s: float) -> int:
        """Rows that the next batch may hold; at least 1."""
        ...

    def started(self, kind: str, rows: Sequence[Row], waited_ms: float, now_s: float) -> Any:
        """A batch begins, when the row that waited longest had waited so long; the answer is handed to `done`."""
        ...

    def done(self, batch: Any, now_s: float, is_whole: bool) -> None:
        """A batch ends; ``is_whole`` unless it was given up on the way."""
        ...


@dataclass(eq=False, slots=True)
class _Waiting:
    """A row and its caller, who waits for ``answer``; ``batch`` is the one it goes with, once it goes."""

    row: Row
    work: Work
    since_s: float
    answer: asyncio.Future[Slate]
    batch: _Batch | None = None


class _Batch:
    """Rows that go together; given up once the last of their callers has left: nobody would read the answers."""

    def __init__(self, waiting: list[_Waiting], task: asyncio.Task[None]):
        self._staying = len(waiting)
        self._task = task
        for each in waiting:
            each.batch = self

    def leave(self) -> None:
        """One of the callers has the answer, or waits no longer."""
        self._staying -= 1
        if not self._staying and not self._task.done():
            self._task.cancel()


class Coalescer:
    """Gathers rows into batches.

    Args:
        book: is told of every row that waits and every batch that runs, and bounds the batches.
        lanes: batches in flight at once; more than one pays when stages run in other processes.
        clock: monotonic seconds, the scale of `Row.deadline_s`.
    """

    def __init__(self, book: Book, lanes: int = 1, clock: Callable[[], float] = time.monotonic):
        self._book = book
        self._free_lanes = lanes
        self._clock = clock
        # Dicts for their order alone: who leaves is found at once, wherever he stands.
        self._queues: dict[Priority, dict[_Waiting, None]] = {priority: {} for priority in Priority}
        self._working: set[asyncio.Task[None]] = set()
        self._is_due = False

    async def submit(self, row: Row, work: Work, since_s: float | None = None) -> Slate:
        """The row's answer. Cancelling the call takes the row out of the queue; a batch that all have left is given up.

        Args:
            since_s: when the caller began to wait, by the clock; absent: now.
        Raises:
            DeadlineExceeded: the row's deadline passed first; a row that still waited then is not worked for.
            Whatever the work raises for this row alone.
        """
        loop = asyncio.get_running_loop()
        now_s = self._clock()
        answer: asyncio.Future[Slate] = loop.create_future()
        waiting = _Waiting(row, work, now_s if since_s is None else since_s, answer)
        self._queues[row.priority][waiting] = None
        self._book.queued(work.kind, row.priority, now_s)
        if self._free_lanes and not self._is_due:
            # At the end of this turn of the loop, so that all who arrived in it go together.
            self._is_due = True
            loop.call_soon(self._dispatch)
        left_s = row.deadline_s - now_s
        timer = loop.call_later(max(0.0, left_s), _expire, answer) if left_s < math.inf else None
        try:
            return await answer
        finally:
            if timer is not None:
                timer.cancel()
            self._remove(waiting)
            if waiting.batch is not None:
                waiting.batch.leave()

    def _dispatch(self) -> None:
        self._is_due = False
        while self._free_lanes and (batch := self._take()):
            self._free_lanes -= 1
            task = asyncio.get_running_loop().create_task(self._work(batch))
            self._working.add(task)
            task.add_done_callback(self._working.discard)
            _Batch(batch, task)

    def _take(self) -> list[_Waiting]:
        """The next batch: the most urgent row, and of the others those of the same work, in order."""
        now_s = self._clock()
        batch: list[_Waiting] = []
        most = 1
        for queue in self._queues.values():
            for waiting in list(queue):
                if len(batch) >= most:
                    return batch
                if self._is_lost(waiting, now_s):
                    continue
                if not batch:
                    most = self._book.most_rows(waiting.work.kind, now_s)
                elif waiting.work is not batch[0].work:
                    continue
                self._remove(waiting)
                batch.append(waiting)
        return batch

    def _is_lost(self, waiting: _Waiting, now_s: float) -> bool:
        """Whether nobody waits for the row any more, or its deadline has passed; it leaves the queue then."""
        if not waiting.answer.done() and waiting.row.deadline_s > now_s:
            return False
        self._remove(waiting)
        _expire(waiting.answer)
        return True

    def _remove(self, waiting: _Waiting) -> None:
        """Take a row out of its queue, if it is still there."""
        queue = self._queues[waiting.row.priority]
        if waiting in queue:
            del queue[waiting]
            self._book.dequeued(waiting.work.kind, waiting.row.priority)

    async def _work(self, batch: list[_Waiting]) -> None:
        now_s = self._clock()
        for waiting in batch:
            waiting.row.trace.timings_ms["queue"] = round((now_s - waiting.since_s) * 1000, 3)
        rows = [waiting.row for waiting in batch]
        begun = self._book.started(batch[0].work.kind, rows, self._longest_wait_ms(batch, now_s), now_s)
        is_whole = False
        try:
            await _answer(batch)
            is_whole = True
        finally:
            self._book.done(begun, self._clock(), is_whole)
            self._free_lanes += 1
            self._dispatch()

    def _longest_wait_ms(self, batch: list[_Waiting], now_s: float) -> float:
        """Of the rows that go now and of those that have to stay."""
        staying = [next(iter(queue)) for queue in self._queues.values() if queue]
        return (now_s - min([waiting.since_s for waiting in (*staying, *batch)])) * 1000


async def _answer(batch: list[_Waiting]) -> None:
    """Work for a batch; a row that makes it fail does so alone."""
    try:
        slates = await batch[0].work.run([waiting.row for waiting in batch])
    except Exception as error:  # the edge between one caller and the others of the batch
        if len(batch) == 1:
            _settle(batch[0].answer, error)
            return
        for one in batch:
            if not one.answer.done():
                await _answer([one])
        return
    for waiting, slate in zip(batch, slates, strict=True):
        _settle(waiting.answer, slate)


def _expire(answer: asyncio.Future[Slate]) -> None:
    if not answer.done():
        answer.set_exception(DeadlineExceeded("the deadline passed before there was an answer"))


def _settle(answer: asyncio.Future[Slate], outcome: Slate | Exception) -> None:
    """Hand the outcome over, unless the caller has left."""
    if answer.done():
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
