from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serving.coalescing import Coalescer
from serving.preparation import Row


class Runner:
    """Answers each row with its k; can be slow, and fails on rows with a negative k."""

    def __init__(self, delay_s: float = 0.0):
        self.delay_s, self.batches, self.running, self.most_running = delay_s, [], 0, 0

    async def __call__(self, rows):
        self.batches.append([row.k for row in rows])
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await asyncio.sleep(self.delay_s)
        self.running -= 1
        if any(row.k < 0 for row in rows):
            raise ValueError("a bad row")
        return [row.k for row in rows]


def row(k: int) -> Row:
    return Row(deadline_s=0.0, k=k)


async def test_a_lone_request_is_a_batch_of_its_own_at_once():
    runner = Runner()
    assert await Coalescer(runner, 8).submit(row(3)) == 3
    assert runner.batches == [[3]]


async def test_those_who_arrive_together_and_those_who_arrive_while_it_runs_are_batched():
    runner = Runner(delay_s=0.05)
    coalescer = Coalescer(runner, 8)
    first = [asyncio.create_task(coalescer.submit(row(k))) for k in (1, 2)]
    await asyncio.sleep(0.01)
    later = [asyncio.create_task(coalescer.submit(row(k))) for k in (3, 4, 5)]
    assert await asyncio.gather(*first, *later) == [1, 2, 3, 4, 5]
    assert runner.batches == [[1, 2], [3, 4, 5]]


@given(st.lists(st.integers(0, 99), min_size=1, max_size=40), st.integers(1, 7), st.integers(1, 3))
def test_everyone_gets_their_own_answer_whatever_the_batches(ks, max_rows, lanes):
    async def ask():
        runner = Runner(delay_s=0.0)
        coalescer = Coalescer(runner, max_rows, lanes)
        answers = await asyncio.gather(*(coalescer.submit(row(k)) for k in ks))
        return answers, runner

    answers, runner = asyncio.run(ask())
    assert answers == ks
    assert max(map(len, runner.batches)) <= max_rows
    assert runner.most_running <= lanes


async def test_a_bad_row_fails_alone():
    coalescer = Coalescer(Runner(), 8)
    answers = await asyncio.gather(*(coalescer.submit(row(k)) for k in (1, -1, 2)), return_exceptions=True)
    assert answers[0] == 1 and answers[2] == 2
    assert isinstance(answers[1], ValueError)
    assert await coalescer.submit(row(7)) == 7


async def test_a_caller_who_left_is_not_worked_for_and_the_next_is_served():
    runner = Runner(delay_s=0.05)
    coalescer = Coalescer(runner, 1)
    first = asyncio.create_task(coalescer.submit(row(1)))
    await asyncio.sleep(0.01)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(coalescer.submit(row(2)), 0.01)
    assert await coalescer.submit(row(3)) == 3
    assert await first == 1
    assert runner.batches == [[1], [3]]


async def test_a_caller_who_leaves_while_the_batch_runs_costs_the_others_nothing():
    coalescer = Coalescer(Runner(delay_s=0.05), 8)
    leaver = asyncio.create_task(coalescer.submit(row(1)))
    stayer = asyncio.create_task(coalescer.submit(row(2)))
    await asyncio.sleep(0.01)
    leaver.cancel()
    assert await stayer == 2
