"""Sends one load from an event loop."""

from __future__ import annotations

import asyncio
import signal
import time
from collections import deque

import uvloop

from benchmarks.load.connection import Connection, Reply
from benchmarks.load.plan import Load
from benchmarks.load.summary import Outcomes

RETRIED_STATUSES = (502, 503)
EARLY_S = 0.000_5
"""Timers of the event loop have whole milliseconds; a request due within half of one is sent now."""
SWEEP_S = 0.05


def fire(load: Load) -> Outcomes:
    """Send the whole load and wait for every answer; in this thread, with an event loop of its own."""
    return uvloop.run(fire_async(load))


async def fire_async(load: Load, started_s: float | None = None, stop_on: signal.Signals | None = None) -> Outcomes:
    """Send the whole load from the running event loop.

    Args:
        started_s: value of time.monotonic() that `Load.times_s` count from; absent: now.
        stop_on: signal to this process after which nothing more is sent.
    """
    run = Run(load, time.monotonic() if started_s is None else started_s)
    if stop_on is not None:
        asyncio.get_running_loop().add_signal_handler(stop_on, run.stop)
    return await run.finished()


class _Task:
    """One request on its way."""

    __slots__ = ("connection", "done", "due_s", "index", "retried")

    def __init__(self, index: int, due_s: float):
        self.index = index
        self.due_s = due_s
        self.done = False
        self.retried = False
        self.connection: Connection | None = None


class Run:
    """Sends one load. Times inside are those of time.monotonic()."""

    def __init__(self, load: Load, started_s: float):
        self._load = load
        self._due = (started_s + load.times_s).tolist()
        self._outcomes = Outcomes.empty(load.times_s, started_s, load.keep_bodies)
        self._next = 0
        self._left = len(self._due)
        self._idle: list[Connection] = []
        self._waiting: deque[_Task] = deque()
        self._under_way: deque[_Task] = deque()
        self._open = 0
        self._sent: int | None = None
        self._opening: set[asyncio.Task] = set()
        self._loop = asyncio.get_running_loop()
        self._done = self._loop.create_future()

    async def finished(self) -> Outcomes:
        cpu_s = time.process_time()
        if self._left:
            self._send_due()
            self._sweep()
            await self._done
        for connection in self._idle:
            connection.abort()
        for opening in self._opening:
            opening.cancel()
        await asyncio.gather(*self._opening, return_exceptions=True)
        self._outcomes.cpu_s = time.process_time() - cpu_s
        return self._outcomes if self._sent is None else self._outcomes.select(slice(self._sent))

    def stop(self) -> None:
        """Send nothing more; what was sent is waited for, and the outcomes are of that alone."""
        if self._sent is not None:
            return
        self._sent = self._next
        self._left -= len(self._due) - self._next
        self._due = self._due[: self._next]
        self._settle()

    def _send_due(self) -> None:
        now = time.monotonic()
        while self._next < len(self._due) and self._due[self._next] <= now + EARLY_S:
            task = _Task(self._next, min(self._due[self._next], now))
            self._next += 1
            self._under_way.append(task)
            self._outcomes.lag_s[task.index] = now - task.due_s
            self._send(task)
        if self._next < len(self._due):
            self._loop.call_later(max(self._due[self._next] - time.monotonic(), 0.001), self._send_due)

    def _send(self, task: _Task) -> None:
        if self._idle:
            self._write(self._idle.pop(), task)
        elif self._open < self._load.connections:
            self._open += 1
            opening = self._loop.create_task(self._connect(task))
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)
        else:
            self._outcomes.bound_hit = True
            self._waiting.append(task)

    def _write(self, connection: Connection, task: _Task) -> None:
        task.connection = connection
        connection.send(task, self._load.requests[task.index % len(self._load.requests)])

    async def _connect(self, task: _Task) -> None:
        def protocol() -> Connection:
            return Connection(self._answered, self._lost)

        try:
            _, connection = await self._loop.create_connection(protocol, self._load.host, self._load.port)
        except OSError:
            self._closed()
            self._unanswered(task)
            return
        if task.done or not connection.is_open:
            self._free(connection)
            self._unanswered(task)
        else:
            self._write(connection, task)

    def _free(self, connection: Connection) -> None:
        """Let the next request that waits have the connection."""
        if not connection.is_open:
            return
        while self._waiting:
            task = self._waiting.popleft()
            if not task.done:
                self._write(connection, task)
                return
        self._idle.append(connection)

    def _answered(self, connection: Connection, task: _Task, reply: Reply) -> None:
        self._free(connection)
        if reply.status in RETRIED_STATUSES and self._may_retry(task):
            self._retry(task)
        else:
            self._finish(task, reply)

    def _lost(self, connection: Connection, task: _Task | None) -> None:
        if connection in self._idle:
            self._idle.remove(connection)
        self._closed()
        if task is not None:
            self._unanswered(task)

    def _closed(self) -> None:
        """A connection less is open, so that one that waits may open another."""
        self._open -= 1
        while self._waiting and self._open < self._load.connections:
            task = self._waiting.popleft()
            if not task.done:
                self._send(task)

    def _unanswered(self, task: _Task) -> None:
        if task.done:
            return
        if self._may_retry(task):
            self._retry(task)
        else:
            self._finish(task, None)

    def _may_retry(self, task: _Task) -> bool:
        return self._load.retry and not task.retried

    def _retry(self, task: _Task) -> None:
        task.retried = True
        task.connection = None
        if self._load.retry_after_s:
            self._loop.call_later(self._load.retry_after_s, self._send, task)
        else:
            self._send(task)

    def _finish(self, task: _Task, reply: Reply | None) -> None:
        if task.done:
            return
        task.done = True
        task.connection = None
        self._outcomes.record(task.index, time.monotonic() - task.due_s, reply, task.retried, self._load.contains)
        self._left -= 1
        self._settle()

    def _settle(self) -> None:
        if not self._left and not self._done.done():
            self._done.set_result(None)

    def _sweep(self) -> None:
        """Give up requests whose time is over, oldest first."""
        limit = time.monotonic() - self._load.timeout_s
        while self._under_way and (self._under_way[0].done or self._under_way[0].due_s <= limit):
            task = self._under_way.popleft()
            if task.done:
                continue
            connection = task.connection
            self._finish(task, None)
            if connection is not None:
                connection.abort()
        if self._left:
            self._loop.call_later(SWEEP_S, self._sweep)
