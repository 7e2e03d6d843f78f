"""Concurrent requests as one batch, with no wait added: work starts as soon as a lane is free.

While a batch runs, those who arrive queue up and form the next one. An idle service therefore
answers a single request at once, and a busy one shares the cost of a batch. When there are more than
one batch holds, higher priorities go first, and within a priority those who came first.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
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


Answer = asyncio.Future[Slate]


@dataclass(frozen=True)
class _Waiting:
    row: Row
    work: Work
    since_s: float


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
        self._queues: dict[Priority, OrderedDict[Answer, _Waiting]] = {p: OrderedDict() for p in Priority}
        self._working: set[asyncio.Task[None]] = set()

    async def submit(self, row: Row, work: Work, since_s: float | None = None) -> Slate:
        """The row's answer. Cancelling the call takes the row out of the queue; a batch that all have left is given up.

        Args:
            since_s: when the caller began to wait, by the clock; absent: now.
        Raises:
            DeadlineExceeded: the row's deadline passed while it waited; no work was done for it.
            Whatever the work raises for this row alone.
        """
        loop = asyncio.get_running_loop()
        answer: Answer = loop.create_future()
        now_s = self._clock()
        self._queues[row.priority][answer] = _Waiting(row, work, now_s if since_s is None else since_s)
        self._book.queued(work.kind, row.priority, now_s)
        # At the end of this turn of the loop, so that all who arrived in it go together.
        loop.call_soon(self._dispatch)
        try:
            return await answer
        finally:
            self._remove(answer, row.priority)

    def _dispatch(self) -> None:
        while self._free_lanes and (batch := self._take()):
            self._free_lanes -= 1
            task = asyncio.get_running_loop().create_task(self._work(batch))
            self._working.add(task)
            task.add_done_callback(self._working.discard)
            _cancel_when_left(task, [answer for answer, _ in batch])

    def _take(self) -> list[tuple[Answer, _Waiting]]:
        """The next batch: the most urgent row, and of the others those of the same work, in order."""
        now_s = self._clock()
        batch: list[tuple[Answer, _Waiting]] = []
        most = 1
        for queue in self._queues.values():
            for answer, waiting in list(queue.items()):
                if len(batch) >= most:
                    return batch
                if self._is_lost(answer, waiting, now_s):
                    continue
                if not batch:
                    most = self._book.most_rows(waiting.work.kind, now_s)
                elif waiting.work is not batch[0][1].work:
                    continue
                self._remove(answer, waiting.row.priority)
                batch.append((answer, waiting))
        return batch

    def _is_lost(self, answer: Answer, waiting: _Waiting, now_s: float) -> bool:
        """Whether nobody waits for the row any more, or its deadline has passed; it leaves the queue then."""
        if not answer.done() and waiting.row.deadline_s > now_s:
            return False
        self._remove(answer, waiting.row.priority)
        _settle(answer, DeadlineExceeded("the deadline passed while the request waited"))
        return True

    def _remove(self, answer: Answer, priority: Priority) -> None:
        """Take a row out of its queue, if it is still there."""
        waiting = self._queues[priority].pop(answer, None)
        if waiting is not None:
            self._book.dequeued(waiting.work.kind, priority)

    async def _work(self, batch: list[tuple[Answer, _Waiting]]) -> None:
        now_s = self._clock()
        rows = [waiting.row for _, waiting in batch]
        for _, waiting in batch:
            waiting.row.trace.timings_ms["queue"] = round((now_s - waiting.since_s) * 1000, 3)
        begun = self._book.started(batch[0][1].work.kind, rows, self._longest_wait_ms(batch, now_s), now_s)
        is_whole = False
        try:
            await self._answer(batch)
            is_whole = True
        finally:
            self._book.done(begun, self._clock(), is_whole)
            self._free_lanes += 1
            self._dispatch()

    def _longest_wait_ms(self, batch: list[tuple[Answer, _Waiting]], now_s: float) -> float:
        """Of the rows that go now and of those that have to stay."""
        staying = [next(iter(queue.values())) for queue in self._queues.values() if queue]
        return (now_s - min(waiting.since_s for waiting in [*staying, *(each for _, each in batch)])) * 1000

    async def _answer(self, batch: list[tuple[Answer, _Waiting]]) -> None:
        try:
            slates = await batch[0][1].work.run([waiting.row for _, waiting in batch])
        except Exception as error:  # the edge between one caller and the others of the batch
            if len(batch) == 1:
                _settle(batch[0][0], error)
                return
            for one in batch:
                if not one[0].done():
                    await self._answer([one])
            return
        for (answer, _), slate in zip(batch, slates, strict=True):
            _settle(answer, slate)


def _cancel_when_left(task: asyncio.Task[None], answers: list[Answer]) -> None:
    """Give up a batch once the last of its callers has left; nobody would read what it still works out."""
    staying = len(answers)

    def leave(answer: Answer) -> None:
        nonlocal staying
        staying -= answer.cancelled()
        if not staying:
            task.cancel()

    for answer in answers:
        answer.add_done_callback(leave)


def _settle(answer: Answer, outcome: Slate | Exception) -> None:
    """Hand the outcome over, unless the caller has left."""
    if answer.done():
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
