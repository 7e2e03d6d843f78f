from __future__ import annotations

import asyncio
import threading
import time
from contextlib import contextmanager

import pytest

from configs.errors import Unavailable
from serving.lanes import Lanes


@pytest.fixture
def lanes():
    lanes = Lanes(1, cores=1)
    yield lanes
    lanes.close()


async def test_a_batch_stays_on_one_thread_that_is_not_the_callers(lanes):
    seen = []

    async def run(rows):
        seen.append(threading.current_thread().name)
        await asyncio.sleep(0)
        seen.append(threading.current_thread().name)
        return [row * 2 for row in rows]

    assert await lanes.on_lane(run)([1, 2]) == [2, 4]
    assert len(set(seen)) == 1
    assert seen[0] != threading.current_thread().name


async def test_the_callers_loop_turns_while_a_batch_computes(lanes):
    turned = asyncio.Event()

    async def run(rows):
        while not turned.is_set():
            time.sleep(0.001)
        return rows

    batch = asyncio.create_task(lanes.on_lane(run)([1]))
    await asyncio.sleep(0.01)
    turned.set()
    assert await asyncio.wait_for(batch, 10) == [1]


async def test_an_error_reaches_the_caller_and_the_lane_goes_on(lanes):
    async def fail(rows):
        raise ValueError("no")

    async def run(rows):
        return rows

    with pytest.raises(ValueError, match="no"):
        await lanes.on_lane(fail)([1])
    assert await lanes.on_lane(run)([1]) == [1]


async def test_a_caller_that_leaves_does_not_harm_the_next(lanes):
    begun, may_end = threading.Event(), threading.Event()

    async def slow(rows):
        begun.set()
        may_end.wait(10)
        return rows

    first = asyncio.create_task(lanes.on_lane(slow)([1]))
    await asyncio.to_thread(begun.wait, 10)
    first.cancel()
    may_end.set()
    assert await asyncio.wait_for(lanes.on_lane(slow)([2]), 10) == [2]


class Gate:
    """Counts who is inside."""

    def __init__(self) -> None:
        self.inside, self.passed = 0, 0

    @contextmanager
    def busy(self):
        self.inside += 1
        try:
            yield
        finally:
            self.inside -= 1
            self.passed += 1


async def test_a_batch_takes_the_device_at_the_gate_while_it_computes_and_gives_it_back_whatever_happens(lanes):
    gate, seen = Gate(), []

    async def run(rows):
        seen.append(gate.inside)
        if not rows:
            raise ValueError("no rows")
        return rows

    await lanes.on_lane(run)([1])
    lanes.pass_gate(gate)
    await lanes.on_lane(run)([1])
    with pytest.raises(ValueError, match="no rows"):
        await lanes.on_lane(run)([])
    lanes.pass_gate(None)
    await lanes.on_lane(run)([1])
    assert seen == [0, 1, 1, 0]
    assert (gate.inside, gate.passed) == (0, 2)


async def test_closed_lanes_finish_what_they_are_at_and_take_nothing_more():
    lanes = Lanes(1, cores=1)
    begun, may_end = threading.Event(), threading.Event()

    async def slow(rows):
        begun.set()
        may_end.wait(10)
        return rows

    first = asyncio.create_task(lanes.on_lane(slow)([1]))
    await asyncio.to_thread(begun.wait, 10)
    waiting = asyncio.create_task(lanes.on_lane(slow)([2]))
    await asyncio.sleep(0)
    lanes.close()
    may_end.set()
    assert await asyncio.wait_for(first, 10) == [1]
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(waiting, 10)
    with pytest.raises(Unavailable):
        await lanes.on_lane(slow)([3])
