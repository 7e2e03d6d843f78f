"""Threads that a whole batch runs on, from its features to its slates.

A stage called on a thread of its own costs a change of thread each time, and the loop that carries HTTP
would meanwhile start on the next stage of another batch. A batch that stays on one thread costs one
change, and HTTP, deadlines and fallbacks go on beside it.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pool.engines.threads import pin_threads
from serving.preparation import Row
from serving.types import Slate

RunBatch = Callable[[Sequence[Row]], Awaitable[list[Slate]]]


class Lanes:
    """``count`` threads, each with an event loop of its own for what a batch awaits.

    Args:
        cores: that the models of one lane may compute on.
    """

    def __init__(self, count: int, cores: int):
        self._own = threading.local()
        self._threads = ThreadPoolExecutor(count, "lane", initializer=self._prepare, initargs=(cores,))

    def on_lane(self, run: RunBatch) -> RunBatch:
        """The same function, run on a lane; a caller that leaves does not stop it."""

        async def hop(rows: Sequence[Row]) -> list[Slate]:
            return await asyncio.get_running_loop().run_in_executor(self._threads, self._run, run, rows)

        return hop

    def close(self) -> None:
        """Let go of the threads once they have finished what they are at."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _prepare(self, cores: int) -> None:
        pin_threads(cores)
        self._own.runner = asyncio.Runner()

    def _run(self, run: Callable[[Sequence[Row]], Any], rows: Sequence[Row]) -> list[Slate]:
        return self._own.runner.run(run(rows))
