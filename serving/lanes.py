"""Threads that a whole batch runs on, from its features to its slates.

A stage called on a thread of its own costs a change of thread each time, and the loop that carries HTTP
would meanwhile start on the next stage of another batch. A batch that stays on one thread costs one
change, and HTTP, deadlines and fallbacks go on beside it.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol

from configs.errors import Unavailable
from pool.engines.threads import pin_threads
from serving.preparation import Row
from serving.types import Slate

RunBatch = Callable[[Sequence[Row]], Awaitable[list[Slate]]]


class Gate(Protocol):
    """What keeps others off the device while a batch computes; `pool.gate.slot.GateSlot` is one."""

    def busy(self) -> AbstractContextManager[object]: ...


@dataclass(frozen=True)
class _Call:
    """A batch for a lane, and who waits for it on which loop."""

    run: RunBatch
    rows: Sequence[Row]
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[list[Slate]]


class Lanes:
    """``count`` threads, each with an event loop of its own for what a batch awaits.

    Args:
        cores: that the models of one lane may compute on.
    """

    def __init__(self, count: int, cores: int):
        self._count = count
        self._gate: Gate | None = None
        self._is_closed = False
        self._calls: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        for place in range(count):
            threading.Thread(target=self._serve, args=(cores,), name=f"lane_{place}", daemon=True).start()

    def on_lane(self, run: RunBatch) -> RunBatch:
        """The same function, run on a lane; a caller that leaves does not stop it."""

        async def hop(rows: Sequence[Row]) -> list[Slate]:
            if self._is_closed:
                raise Unavailable("the service stops")
            loop = asyncio.get_running_loop()
            answer: asyncio.Future[list[Slate]] = loop.create_future()
            self._calls.put(_Call(run, rows, loop, answer))
            return await answer

        return hop

    def pass_gate(self, gate: Gate | None) -> None:
        """Let every batch that begins from here on take the device at a gate; batches under way go on as they are."""
        self._gate = gate

    def close(self) -> None:
        """Let go of the threads once they have finished what they are at; who still waits for one is cancelled."""
        self._is_closed = True
        with contextlib.suppress(queue.Empty):
            while call := self._calls.get_nowait():
                _tell(call, call.answer.cancel)
        for _ in range(self._count):
            self._calls.put(None)

    def _serve(self, cores: int) -> None:
        pin_threads(cores)
        # asyncio's own loop, whatever the policy says: it starts and stops in a third of uvloop's time.
        loop = asyncio.SelectorEventLoop()
        while (call := self._calls.get()) is not None:
            if not call.answer.cancelled():
                self._work(call, loop)
        loop.close()

    def _work(self, call: _Call, loop: asyncio.AbstractEventLoop) -> None:
        try:
            slates = self._run(call, loop)
        except BaseException as error:  # the edge of the thread, which outlives whatever a batch raises
            _tell(call, _fail, call.answer, error)
        else:
            _tell(call, _settle, call.answer, slates)

    def _run(self, call: _Call, loop: asyncio.AbstractEventLoop) -> list[Slate]:
        gate = self._gate
        if gate is None:
            return loop.run_until_complete(_as_coroutine(call))
        with gate.busy():
            return loop.run_until_complete(_as_coroutine(call))


async def _as_coroutine(call: _Call) -> list[Slate]:
    return await call.run(call.rows)


def _tell(call: _Call, act: Callable[..., object], *args: object) -> None:
    """Act on the caller's loop; a loop that is closed has nobody who waits."""
    with contextlib.suppress(RuntimeError):
        call.loop.call_soon_threadsafe(act, *args)


def _settle(answer: asyncio.Future[list[Slate]], slates: list[Slate]) -> None:
    if not answer.done():
        answer.set_result(slates)


def _fail(answer: asyncio.Future[list[Slate]], error: BaseException) -> None:
    if isinstance(error, asyncio.CancelledError):
        answer.cancel()
    elif not answer.done():
        answer.set_exception(error)
