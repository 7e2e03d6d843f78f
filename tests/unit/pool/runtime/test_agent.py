"""The agent keeps the gates of its node and obeys the newest controller alone."""

from __future__ import annotations

import pytest

from configs.errors import Conflict
from pool.device import Device, Topology
from pool.gate.segment import GateSegment
from pool.runtime.agent import NodeAgent, newest_epoch
from pool.runtime.messages import Cut, GateOrder

DEVICE = Device("gpu-0", "gpu", 1, Topology("n"), (0,), emulated=True)
OTHER = Device("gpu-1", "gpu", 1, Topology("n"), (1,), emulated=True)


@pytest.fixture
def agent(tmp_path) -> NodeAgent:
    agent = NodeAgent()
    agent.open(GateOrder(3, tmp_path, (DEVICE,)))
    return agent


def test_it_makes_the_gates_and_reads_them(agent):
    assert [each.device_id for each in agent.read().gates] == ["gpu-0"]


def test_the_newest_epoch_of_its_gates_outlives_it(agent, tmp_path):
    assert newest_epoch(tmp_path) == 3
    assert NodeAgent().discover(tmp_path).epoch == 3
    (tmp_path / "broken.gate").write_bytes(b"?")
    assert newest_epoch(tmp_path) == 3


def test_it_cuts_the_device_for_those_who_have_joined(agent, tmp_path):
    segment = GateSegment.open(tmp_path, "gpu-0")
    with segment.join("night", "best_effort", 300) as slot:
        agent.cut(Cut(3, "gpu-0", {"night": 700, "not-yet": 300}))
        assert slot.weight_milli == 700
        agent.cut(Cut(3, "no-such-device", {"night": 1}))
        assert slot.weight_milli == 700


def test_an_older_controller_is_refused_and_a_newer_one_obeyed(agent, tmp_path):
    agent.open(GateOrder(5, tmp_path, (DEVICE, OTHER)))
    with pytest.raises(Conflict, match="epoch 3 is over"):
        agent.cut(Cut(3, "gpu-0", {}))
    with pytest.raises(Conflict, match="epoch 4 is over"):
        agent.open(GateOrder(4, tmp_path, (DEVICE,)))
    assert {each.device_id for each in agent.read().gates} == {"gpu-0", "gpu-1"}


def test_gates_of_an_earlier_order_are_taken_over_as_well(agent, tmp_path):
    agent.open(GateOrder(9, tmp_path, (OTHER,)))
    with pytest.raises(Conflict, match="epoch"):
        NodeAgent().open(GateOrder(8, tmp_path, (DEVICE,)))
