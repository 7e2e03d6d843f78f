"""Three real processes on one core share it as the gate says, and as it says anew while they run."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pool.device import Device, Topology
from pool.gate.control import GateControl
from pool.gate.readings import GateReading, metered_ns, used_milli
from pool.gate.segment import GateSegment

MEASURED_NS = 1_500_000_000
"""Device time over which shares are taken, so that a slow machine only takes longer."""
PATIENCE_S = 120.0
POINTS = 50
"""Thousandths by which a share may be off: a few steps of 4 ms, of 1.5 s."""
MEMBER = """
import sys, time
from pathlib import Path
from pool.device import Device, Topology
from pool.gate.cpu import enter_device
from pool.gate.segment import GateSegment
folder, name, priority, weight, core = sys.argv[1:]
seat = enter_device(Device("cpu-0", "cpu", 1, Topology("node"), (int(core),)), priority)
with GateSegment.open(Path(folder), "cpu-0").join(name, priority, int(weight), seat.meter) as slot:
    while slot.command != "yield":
        turn = slot.wait_turn(1.0)
        if turn:
            with turn:
                end = time.thread_time_ns() + 4_000_000
                while time.thread_time_ns() < end:
                    pass
"""


@pytest.fixture
def core() -> int:
    return min(os.sched_getaffinity(0))


@pytest.fixture
def segment(tmp_path: Path, core: int) -> GateSegment:
    return GateSegment.create(tmp_path, Device("cpu-0", "cpu", 1 << 30, Topology("node"), (core,)))


@pytest.fixture
def members(segment, core):
    """Three processes that always want the device, at 30, 40 and 30%."""
    declared = [("evaluate", "burstable", 300), ("warmup", "burstable", 400), ("finetune", "best_effort", 300)]
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", MEMBER, str(segment.path.parent), name, priority, str(weight), str(core)]
        )
        for name, priority, weight in declared
    ]
    deadline_s = time.monotonic() + PATIENCE_S
    while sum(view.steps > 0 for view in segment.read().slots) < len(declared):
        assert time.monotonic() < deadline_s, segment.read()
        time.sleep(0.02)
    yield processes
    for process in processes:
        process.kill()
        process.wait()


def measure(segment: GateSegment) -> dict[str, int]:
    """Metered shares in thousandths, over the next MEASURED_NS of device time."""
    before, deadline_s = segment.read(), time.monotonic() + PATIENCE_S
    while True:
        after: GateReading = segment.read()
        if sum(metered_ns(before, after).values()) >= MEASURED_NS:
            return used_milli(before, after)
        assert time.monotonic() < deadline_s, after
        time.sleep(0.05)


def test_shares_meter_as_declared_and_as_cut_anew_and_members_leave_when_told(segment, members):
    assert measure(segment) == pytest.approx({"evaluate": 300, "warmup": 400, "finetune": 300}, abs=POINTS)

    control = GateControl(segment, epoch=1)
    control.set_weights({"evaluate": 700, "warmup": 200, "finetune": 100})
    assert measure(segment) == pytest.approx({"evaluate": 700, "warmup": 200, "finetune": 100}, abs=POINTS)

    members[0].kill()
    members[0].wait()
    segment.sweep()
    shares = measure(segment)
    assert shares == pytest.approx({"warmup": 667, "finetune": 333}, abs=POINTS)

    for name in shares:
        control.command(name, "yield")
    assert [process.wait(PATIENCE_S) for process in members[1:]] == [0, 0]
    assert segment.read().slots == ()
