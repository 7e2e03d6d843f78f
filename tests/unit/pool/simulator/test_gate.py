"""A simulated device keeps the promises of the live gate."""

from __future__ import annotations

import pytest
import simpy

from pool.policy.observation import LeaseView
from pool.simulator.gate import SimulatedGate
from pool.simulator.scenario import WorkSettings
from pool.simulator.world import Copy, Work


def member(name, weight, unit_ms=5.0, units=None):
    return Copy(LeaseView(name, name, "d", weight, 0), 0.0, weight), Work(
        WorkSettings(name=name, unit_ms=unit_ms, units=units)
    )


def gate_of(lanes=1, **weights):
    env = simpy.Environment()
    gate = SimulatedGate(env, lanes)
    members = {name: member(name, weight) for name, weight in weights.items()}
    gate.share(members)
    return env, gate, members


def ends(env, gate, batches):
    """When batches end that begin at given times: (begin, seconds of work)."""
    found = {}

    def one(number, begin_s, work_s):
        yield env.timeout(begin_s)
        yield gate.compute(f"b{number}", work_s)
        found[number] = env.now

    for number, (begin_s, work_s) in enumerate(batches):
        env.process(one(number, begin_s, work_s))
    env.run(until=10)
    return [found[number] for number in range(len(batches))]


def test_turns_follow_the_weights():
    env, gate, members = gate_of(a=600, b=300)
    env.run(until=9.0)
    used = gate.readings()
    assert used["a"] == pytest.approx(6.0, abs=0.05)
    assert used["b"] == pytest.approx(3.0, abs=0.05)
    assert members["a"][1].done == pytest.approx(1_200, abs=10)


def test_a_new_weight_counts_from_now_on():
    env, gate, members = gate_of(a=500, b=500)
    env.run(until=2.0)
    gate.readings()
    members["a"][0].weight_milli, members["b"][0].weight_milli = 900, 100
    env.run(until=4.0)
    assert gate.readings()["a"] == pytest.approx(1.8, abs=0.05)


def test_a_guaranteed_batch_waits_for_the_step_under_way_and_no_longer():
    env, gate, _ = gate_of(a=1000)
    [end_s] = ends(env, gate, [(0.0132, 0.020)])
    assert end_s == pytest.approx(0.015 + 0.020)


def test_nobody_has_a_turn_while_a_batch_computes():
    env, gate, members = gate_of(a=1000)
    ends(env, gate, [(1.0, 2.0)])
    gate.catch_up()
    assert members["a"][1].done == pytest.approx(8.0 / 0.005, abs=2)


def test_batches_side_by_side_have_equal_parts_of_one_lane():
    env, gate, _ = gate_of()
    assert ends(env, gate, [(0.0, 1.0), (0.5, 1.0)]) == pytest.approx([1.5, 2.0])


def test_batches_have_a_lane_each_where_there_are_several():
    env, gate, _ = gate_of(lanes=2)
    assert ends(env, gate, [(0.0, 1.0), (0.5, 1.0), (0.5, 0.25)]) == pytest.approx([1.125, 1.625, 0.875])


def test_what_a_member_used_is_read_once():
    env, gate, _ = gate_of(a=1000)
    env.run(until=1.0)
    assert gate.readings()["a"] == pytest.approx(1.0, abs=0.006)
    assert gate.readings()["a"] == 0


def test_work_that_is_done_leaves_the_device_to_others():
    env = simpy.Environment()
    gate = SimulatedGate(env, 1)
    gate.share({"a": member("a", 900, units=20), "b": member("b", 100)})
    env.run(until=2.0)
    used = gate.readings()
    assert used["a"] == pytest.approx(0.1)
    assert used["b"] == pytest.approx(1.9, abs=0.02)
