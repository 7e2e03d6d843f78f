from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import DeadlineExceeded
from serving.coalescing import Coalescer, Work
from serving.preparation import Row
from serving.priority import Priority

FOREVER = float("inf")


class Runner:
    """Answers each row with its k once ``gate`` is open; fails on batches with a negative k."""

    def __init__(self, is_open: bool = True):
        self.batches, self.running, self.most_running = [], 0, 0
        self.gate = asyncio.Event()
        if is_open:
            self.gate.set()

    async def __call__(self, rows):
        self.batches.append([row.k for row in rows])
        self.running += 1
        self.most_running = max(self.most_running, self.running)
        await self.gate.wait()
        self.running -= 1
        if any(row.k < 0 for row in rows):
            raise ValueError("a bad row")
        return [row.k for row in rows]


@dataclass
class FakeBook:
    """Bounds batches by ``most`` and checks that the account comes out even."""

    most: int = 8
    waiting: int = 0
    running: int = 0
    given_up: int = 0
    waits_ms: list[float] = field(default_factory=list)

    def queued(self, kind, priority, now_s):
        self.waiting += 1

    def dequeued(self, kind, priority):
        self.waiting -= 1

    def most_rows(self, kind, now_s):
        return self.most

    def started(self, kind, rows, waited_ms, now_s):
        self.running += 1
        self.waits_ms.append(waited_ms)
        return object()

    def done(self, batch, now_s, is_whole):
        self.running -= 1
        self.given_up += not is_whole

    @property
    def is_even(self) -> bool:
        return self.waiting == self.running == 0


class Clock:
    now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Bench:
    """A coalescer with a runner, a book and a clock of one's own."""

    def __init__(self, most: int = 8, lanes: int = 1, is_open: bool = True):
        self.runner, self.book, self.clock = Runner(is_open), FakeBook(most), Clock()
        self.coalescer = Coalescer(self.book, lanes, self.clock)
        self.work = Work("recommend", self.runner)

    def ask(self, k: int, priority: Priority = Priority.NORMAL, deadline_s: float = FOREVER, work: Work | None = None):
        row = Row(deadline_s, k=k, priority=priority)
        return asyncio.create_task(self.coalescer.submit(row, work or self.work))

    async def busy_with(self, k: int):
        """Ask for k and have it run, held up until the gate opens."""
        task = self.ask(k)
        await turn()
        assert self.runner.batches == [[k]]
        return task


async def turn() -> None:
    """Let everything that can go on go on."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_lone_request_is_a_batch_of_its_own_at_once():
    bench = Bench()
    assert await bench.ask(3) == 3
    assert bench.runner.batches == [[3]]
    assert bench.book.waits_ms == [0]


async def test_those_who_arrive_together_and_those_who_arrive_while_it_runs_are_batched():
    bench = Bench(is_open=False)
    first = [bench.ask(k) for k in (1, 2)]
    await turn()
    later = [bench.ask(k) for k in (3, 4, 5)]
    await turn()
    bench.runner.gate.set()
    assert await asyncio.gather(*first, *later) == [1, 2, 3, 4, 5]
    assert bench.runner.batches == [[1, 2], [3, 4, 5]]


asks = st.lists(st.tuples(st.integers(0, 99), st.sampled_from(Priority)), min_size=1, max_size=40)


@given(asks, st.integers(1, 7), st.integers(1, 3))
def test_everyone_gets_their_own_answer_once_whatever_the_batches(asked, most, lanes):
    async def ask():
        bench = Bench(most, lanes)
        return await asyncio.gather(*(bench.ask(k, priority) for k, priority in asked)), bench

    answers, bench = asyncio.run(ask())
    assert answers == [k for k, _ in asked]
    assert sorted(k for batch in bench.runner.batches for k in batch) == sorted(answers)
    assert max(map(len, bench.runner.batches)) <= most
    assert bench.runner.most_running <= lanes
    assert bench.book.is_even


@given(asks, st.integers(1, 7))
def test_higher_priorities_go_first_and_within_one_those_who_came_first(asked, most):
    async def ask():
        bench = Bench(most, is_open=False)
        first = await bench.busy_with(-1)
        tasks = [bench.ask(place, priority) for place, (_, priority) in enumerate(asked)]
        await turn()
        bench.runner.gate.set()
        await asyncio.gather(first, *tasks, return_exceptions=True)
        return bench.runner.batches

    [_, *batches] = asyncio.run(ask())
    by_rule = sorted(range(len(asked)), key=lambda place: (list(Priority).index(asked[place][1]), place))
    assert [k for batch in batches for k in batch] == by_rule
    assert all(len(batch) == most for batch in batches[:-1])


async def test_a_bad_row_fails_alone():
    bench = Bench()
    answers = await asyncio.gather(*(bench.ask(k) for k in (1, -1, 2)), return_exceptions=True)
    assert answers[0] == 1 and answers[2] == 2
    assert isinstance(answers[1], ValueError)
    assert await bench.ask(7) == 7
    assert bench.book.is_even


async def test_a_caller_who_left_is_not_worked_for_and_the_next_is_served():
    bench = Bench(most=1, is_open=False)
    first = await bench.busy_with(1)
    leaver, stayer = bench.ask(2), bench.ask(3)
    await turn()
    leaver.cancel()
    await turn()
    assert bench.book.waiting == 1
    bench.runner.gate.set()
    assert await asyncio.gather(first, stayer) == [1, 3]
    assert bench.runner.batches == [[1], [3]]
    assert bench.book.is_even


async def test_a_caller_who_leaves_in_the_very_turn_a_batch_is_formed_is_not_in_it():
    bench = Bench(is_open=False)
    first = await bench.busy_with(1)
    leaver, stayer = bench.ask(2), bench.ask(3)
    await turn()
    bench.runner.gate.set()
    leaver.cancel()
    assert await asyncio.gather(first, stayer) == [1, 3]
    assert bench.runner.batches == [[1], [3]]


async def test_a_caller_who_leaves_while_the_batch_runs_costs_the_others_nothing():
    bench = Bench(is_open=False)
    leaver, stayer = bench.ask(1), bench.ask(2)
    await turn()
    leaver.cancel()
    await turn()
    bench.runner.gate.set()
    assert await stayer == 2


async def test_a_batch_that_everybody_left_is_given_up_and_the_lane_is_free():
    bench = Bench(is_open=False)
    leaver = await bench.busy_with(1)
    stayer = bench.ask(2)
    leaver.cancel()
    await turn()
    assert bench.runner.batches == [[1], [2]]
    bench.runner.gate.set()
    assert await stayer == 2
    assert bench.book.is_even
    assert bench.book.given_up == 1


@given(st.lists(st.tuples(st.integers(-5, 5), st.sampled_from(Priority)), min_size=1, max_size=30), st.integers(1, 7))
def test_a_row_whose_deadline_passed_in_the_queue_is_told_so_and_never_run(asked, most):
    async def ask():
        bench = Bench(most, is_open=False)
        first = await bench.busy_with(99)
        now_s = bench.clock.now_s
        tasks = [bench.ask(place, priority, now_s + 10 + left) for place, (left, priority) in enumerate(asked)]
        await turn()
        bench.clock.now_s += 10
        bench.runner.gate.set()
        await first
        return await asyncio.gather(*tasks, return_exceptions=True), bench

    answers, bench = asyncio.run(ask())
    ran = {k for batch in bench.runner.batches[1:] for k in batch}
    for place, (left, _) in enumerate(asked):
        if left > 0:
            assert answers[place] == place
        else:
            assert isinstance(answers[place], DeadlineExceeded)
            assert place not in ran
    assert bench.book.is_even


async def test_rows_of_different_work_never_share_a_batch_and_urgency_goes_across_work():
    bench = Bench(is_open=False)
    other = Work("rank", bench.runner)
    first = await bench.busy_with(0)
    tasks = [
        bench.ask(1),
        bench.ask(2, work=other),
        bench.ask(3),
        bench.ask(4, Priority.HIGH, work=other),
        bench.ask(5, Priority.LOW, work=other),
    ]
    await turn()
    bench.runner.gate.set()
    assert await asyncio.gather(first, *tasks) == [0, 1, 2, 3, 4, 5]
    assert bench.runner.batches[1:] == [[4, 2, 5], [1, 3]]


async def test_rows_are_counted_whatever_each_carries():
    bench = Bench(most=2)
    rows = [Row(FOREVER, k=n, items=range(1_000)) for n in range(5)]
    assert await asyncio.gather(*(bench.coalescer.submit(row, bench.work) for row in rows)) == [0, 1, 2, 3, 4]
    assert bench.runner.batches == [[0, 1], [2, 3], [4]]


async def test_the_wait_that_is_told_is_the_longest_of_all_who_wait():
    bench = Bench(most=1, is_open=False)
    first = await bench.busy_with(0)
    low = bench.ask(1, Priority.LOW)
    await turn()
    bench.clock.now_s += 0.5
    high = bench.ask(2, Priority.HIGH)
    await turn()
    bench.clock.now_s += 0.25
    bench.runner.gate.set()
    await asyncio.gather(first, low, high)
    assert bench.runner.batches == [[0], [2], [1]]
    assert bench.book.waits_ms == pytest.approx([0, 750, 750])


async def test_a_deadline_that_passes_while_the_batch_runs_ends_only_that_callers_wait():
    bench = Bench(is_open=False)
    hurried, patient = bench.ask(1, deadline_s=bench.clock.now_s + 0.01), bench.ask(2)
    await turn()
    assert bench.runner.batches == [[1, 2]]
    with pytest.raises(DeadlineExceeded):
        await asyncio.wait_for(hurried, 10)
    bench.runner.gate.set()
    assert await patient == 2
    assert bench.book.is_even
    assert bench.book.given_up == 0


async def test_a_batch_whose_deadlines_have_all_passed_is_given_up():
    bench = Bench(is_open=False)
    hurried = bench.ask(1, deadline_s=bench.clock.now_s + 0.01)
    with pytest.raises(DeadlineExceeded):
        await asyncio.wait_for(hurried, 10)
    await turn()
    assert bench.book.given_up == 1
    assert bench.book.is_even
