"""The agent keeps the gates of its node and obeys the newest controller alone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from configs.errors import Conflict
from pool.device import Device, Topology
from pool.gate.segment import GateSegment
from pool.runtime.agent import NodeAgent, is_stopped, newest_epoch
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


JOIN = """
import sys, time
from pathlib import Path
from pool.gate.segment import GateSegment
with GateSegment.open(Path(sys.argv[1]), "gpu-0").join("night", "best_effort", 300):
    print("joined", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def member(agent, tmp_path):
    """A process of its own that has joined the gate."""
    with subprocess.Popen([sys.executable, "-c", JOIN, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline()
        yield process
        process.kill()


def stop(process) -> None:
    process.send_signal(signal.SIGSTOP)
    os.waitid(os.P_PID, process.pid, os.WSTOPPED)


def test_a_member_that_stays_stopped_is_ended_and_swept(agent, member):
    agent.read()
    stop(member)
    assert [slot.pid for slot in agent.read().gates[0].slots] == [member.pid], "it may go on yet"
    agent.read()
    assert member.wait(10) == -signal.SIGKILL
    assert agent.read().gates[0].slots == ()


def test_a_member_that_goes_on_between_two_readings_is_left_alone(agent, member):
    for _ in range(3):
        stop(member)
        agent.read()
        member.send_signal(signal.SIGCONT)
        os.waitid(os.P_PID, member.pid, os.WCONTINUED)
        agent.read()
    assert member.poll() is None


def test_another_process_of_the_same_id_is_not_the_member(agent, member):
    [slot] = agent.read().gates[0].slots
    stop(member)
    assert is_stopped(slot)
    assert not is_stopped(replace(slot, pid_start=slot.pid_start + 1))
    assert not is_stopped(replace(slot, pid=1 << 30))
