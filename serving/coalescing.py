"""Concurrent requests as one batch, with no wait added: work starts as soon as a lane is free.

While a batch runs, those who arrive queue up and form the next one. An idle service therefore
answers a single request at once, and a busy one shares the cost of a batch.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Sequence

from serving.preparation import Row
from serving.types import Slate

RunBatch = Callable[[Sequence[Row]], Awaitable[list[Slate]]]


class Coalescer:
    """Gathers rows for ``run``.

    Args:
        run: answers rows, in order.
        max_rows: rows in one batch at most.
        lanes: batches in flight at once; more than one pays when stages run in other processes.
    """

    def __init__(self, run: RunBatch, max_rows: int, lanes: int = 1):
        self._run = run
        self._max_rows = max_rows
        self._free_lanes = lanes
        self._waiting: deque[tuple[Row, asyncio.Future[Slate]]] = deque()
        self._working: set[asyncio.Task[None]] = set()

    async def submit(self, row: Row) -> Slate:
        """The row's answer. Cancelling the call takes the row out of the queue.

        Raises whatever ``run`` raises for this row alone.
        """
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Slate] = loop.create_future()
        self._waiting.append((row, answer))
        # At the end of this turn of the loop, so that all who arrived in it go together.
        loop.call_soon(self._dispatch)
        return await answer

    def _dispatch(self) -> None:
        while self._free_lanes and (batch := self._take()):
            self._free_lanes -= 1
            task = asyncio.get_running_loop().create_task(self._work(batch))
            self._working.add(task)
            task.add_done_callback(self._working.discard)

    def _take(self) -> list[tuple[Row, asyncio.Future[Slate]]]:
        """The oldest rows that somebody still waits for."""
        batch = []
        while self._waiting and len(batch) < self._max_rows:
            row, answer = self._waiting.popleft()
            if not answer.done():
                batch.append((row, answer))
        return batch

    async def _work(self, batch: list[tuple[Row, asyncio.Future[Slate]]]) -> None:
        try:
            await self._answer(batch)
        finally:
            self._free_lanes += 1
            self._dispatch()

    async def _answer(self, batch: list[tuple[Row, asyncio.Future[Slate]]]) -> None:
        try:
            slates = await self._run([row for row, _ in batch])
        except Exception as error:  # the edge between one caller and the others of the batch
            if len(batch) == 1:
                _settle(batch[0][1], error)
                return
            for one in batch:
                await self._answer([one])
            return
        for (_, answer), slate in zip(batch, slates, strict=True):
            _settle(answer, slate)


def _settle(answer: asyncio.Future[Slate], outcome: Slate | Exception) -> None:
    """Hand the outcome over, unless the caller has left."""
    if answer.done():
        return
    if isinstance(outcome, Exception):
        answer.set_exception(outcome)
    else:
        answer.set_result(outcome)
