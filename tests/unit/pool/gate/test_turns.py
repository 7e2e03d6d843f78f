"""Turns by deficit round robin: shares of metered time against their closed form, on a made-up device."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.gate.turns import ROUND_NS, ROUNDS_KEPT, Contender, capped, carried, charge, next_turn

MS = 1_000_000
TURNS = 2_000


@dataclass
class Worker:
    weight: int
    cost_ns: Callable[[int], int]
    idle: Callable[[int], bool] = lambda now_ns: False
    credit: int = 0
    paid_weight: int = 0
    used: int = 0
    turn_end: int = 0


@dataclass
class Device:
    """A device with a clock that moves by what steps take. After a turn its member is in a gap: it does not
    want the device at the next choice, as a process that has not come back to the gate yet."""

    workers: list[Worker]
    now_ns: int = 1
    in_gap: int | None = None
    turns: list[tuple[int, int]] = field(default_factory=list)

    def run(self, turns: int) -> None:
        end = len(self.turns) + turns
        while len(self.turns) < end:
            self.step()

    def step(self) -> None:
        choice = next_turn([self.contender(slot) for slot in range(len(self.workers))])
        for slot, credit in choice.credits_ns.items():
            self.workers[slot].credit, self.workers[slot].paid_weight = credit, self.workers[slot].weight
        self.in_gap = None
        if choice.slot is None:
            self.now_ns += MS // 10
            return
        worker = self.workers[choice.slot]
        took = worker.cost_ns(len(self.turns))
        worker.used += took
        worker.credit = charge(worker.weight, carried(worker.weight, worker.paid_weight, worker.credit), took)
        worker.paid_weight = worker.weight
        self.now_ns += max(took, 1)
        worker.turn_end = self.now_ns
        self.turns.append((choice.slot, took))
        self.in_gap = choice.slot

    def contender(self, slot: int) -> Contender:
        worker = self.workers[slot]
        idle, gap = worker.idle(self.now_ns), slot == self.in_gap
        credit = carried(worker.weight, worker.paid_weight, worker.credit)
        return Contender(slot, worker.weight, credit, not idle and not gap, gap, worker.turn_end)

    def shares(self) -> list[float]:
        total = sum(worker.used for worker in self.workers)
        return [worker.used / total for worker in self.workers]


def steady(ms: float) -> Callable[[int], int]:
    return lambda turn: round(ms * MS)


def test_shares_of_metered_time_are_the_weights_though_steps_differ():
    device = Device([Worker(300, steady(1)), Worker(400, steady(5)), Worker(300, steady(3.7))])
    device.run(TURNS)
    assert device.shares() == pytest.approx([0.3, 0.4, 0.3], abs=0.01)


def test_a_new_cut_holds_from_the_next_fifty_milliseconds_on():
    device = Device([Worker(300, steady(2)), Worker(400, steady(2)), Worker(300, steady(2))])
    device.run(501)
    for worker, weight in zip(device.workers, (700, 200, 100), strict=True):
        worker.weight, worker.used = weight, 0
    end = device.now_ns + 50 * MS
    while device.now_ns < end:
        device.step()
    step = 2 / 50
    assert device.shares() == pytest.approx([0.7, 0.2, 0.1], abs=2 * step)
    device.run(TURNS)
    assert device.shares() == pytest.approx([0.7, 0.2, 0.1], abs=0.01)


def test_one_that_overruns_works_its_debt_off():
    device = Device([Worker(500, steady(60)), Worker(500, steady(2))])
    device.run(TURNS)
    assert device.shares() == pytest.approx([0.5, 0.5], abs=0.02)


def test_what_an_idle_member_leaves_goes_to_the_others_by_weight_and_is_not_owed_to_it():
    back_ns = 1_000 * MS
    sleeper = Worker(500, steady(2), idle=lambda now: now < back_ns)
    device = Device([sleeper, Worker(300, steady(2)), Worker(100, steady(2))])
    while device.now_ns < back_ns:
        device.step()
    assert device.shares() == pytest.approx([0, 0.75, 0.25], abs=0.02)
    for worker in device.workers:
        worker.used = 0
    end = device.now_ns + 400 * MS
    while device.now_ns < end:
        device.step()
    fair = 400 * MS * 500 / 900
    most_ahead = ROUNDS_KEPT * ROUND_NS * 500 // 1000 + 2 * MS
    assert fair - 4 * MS <= sleeper.used <= fair + most_ahead


def test_a_turn_that_meters_nothing_is_not_followed_by_another_for_ever():
    device = Device([Worker(500, steady(0)), Worker(500, steady(2))])
    device.run(TURNS)
    # Every empty turn costs 50 us: at most 40 of them for each turn of 2 ms.
    assert device.workers[1].used >= TURNS / 42 * 2 * MS


def test_without_a_weight_a_member_gets_what_nobody_with_one_wants():
    device = Device([Worker(0, steady(2)), Worker(0, steady(2)), Worker(1, steady(2), idle=lambda n: n > 100 * MS)])
    while device.now_ns < 100 * MS:
        device.step()
    assert [worker.used for worker in device.workers[:2]] == [0, 0]
    device.run(100)
    assert device.workers[0].used == pytest.approx(device.workers[1].used, abs=2 * MS)
    assert device.workers[0].used > 90 * MS


def test_a_member_in_the_gap_between_two_turns_keeps_the_credit_it_has():
    heavy = Contender(0, 900, 10 * MS, wants=False, returns=True)
    light = Contender(1, 100, 0, wants=True)
    assert next_turn([heavy, light]).slot is None
    assert next_turn([Contender(0, 900, 10 * MS, wants=False), light]).slot == 1


def test_the_earlier_of_equals_goes_first():
    equals = [Contender(slot, 500, 0, wants=True) for slot in (7, 3)]
    assert next_turn(equals).slot == 7


def test_nobody_wants_it():
    assert next_turn([]).slot is None
    assert next_turn([Contender(0, 500, 0, wants=False)]).slot is None


@given(
    weights=st.lists(st.integers(1, 1000), min_size=1, max_size=6),
    seed=st.randoms(use_true_random=False),
)
def test_no_member_is_further_from_its_share_than_two_rounds_and_a_step(weights, seed):
    longest = 5 * MS

    def cost(turn: int) -> int:
        return seed.randint(MS // 10, longest)

    device = Device([Worker(weight, cost) for weight in weights])
    device.run(300)
    total = sum(worker.used for worker in device.workers)
    # With the same number of rounds paid to all, a member has used its weight times that, but for the credit it
    # keeps or the step that overdrew; its share of the total is off by its own deviation and that of the rest.
    off = [ROUNDS_KEPT * ROUND_NS * weight / 1000 + longest for weight in weights]
    for worker, own in zip(device.workers, off, strict=True):
        share = worker.weight / sum(weights)
        assert abs(worker.used - share * total) <= own + share * sum(off)


@given(
    st.lists(
        st.builds(
            Contender,
            slot=st.integers(0, 63),
            weight_milli=st.integers(0, 1000),
            credit_ns=st.integers(-(10**12), 10**9),
            wants=st.booleans(),
            turn_end_ns=st.integers(0, 10**15),
        ),
        max_size=8,
        unique_by=lambda each: each.slot,
    )
)
def test_the_device_never_idles_while_someone_wants_it_and_credit_stays_bounded(contenders):
    capped_ones = [
        Contender(each.slot, each.weight_milli, capped(each.weight_milli, each.credit_ns), each.wants)
        for each in contenders
    ]
    choice = next_turn(capped_ones)
    assert (choice.slot is None) == (not any(each.wants for each in contenders))
    for each in capped_ones:
        credit = choice.credits_ns.get(each.slot, each.credit_ns)
        assert each.credit_ns <= credit <= ROUNDS_KEPT * ROUND_NS * each.weight_milli // 1000
