"""The host runs a work behind a real gate, in this process, and says how it ended whatever happens."""

from __future__ import annotations

import json
import sys
import time
import types
from pathlib import Path

import pytest

from configs.errors import Conflict, DataError
from pool.device import Device, Topology
from pool.gate.meters import ThreadMeter
from pool.gate.segment import GateSegment
from pool.lease import Lease
from pool.runtime.host import WorkloadHost
from pool.runtime.messages import Factory, HostOrder, Order
from pool.work import Progress
from pool.workload import WorkloadSpec

PATIENCE_S = 30.0
DEVICE = Device("gpu-0", "gpu", 1, Topology("n"), (0,), emulated=True)


class Counting:
    """Counts to ``total``; ``fault`` is raised at the tenth unit."""

    def __init__(self, total: int, fault: BaseException | None = None):
        self.done, self.total, self.fault = 0, total, fault

    def step(self, units: int) -> int:
        if self.fault is not None and self.done >= 10:
            raise self.fault
        units = min(units, self.total - self.done)
        self.done += units
        return units

    def progress(self) -> Progress:
        return Progress(self.done, self.total)

    def save(self, folder: Path) -> None:
        (folder / "done").write_text(json.dumps(self.done))

    def restore(self, folder: Path) -> None:
        self.done = json.loads((folder / "done").read_text())

    def result(self) -> dict[str, int]:
        return {"counted": self.done}


@pytest.fixture
def host(tmp_path, monkeypatch):
    """Start a host of a work; the segment of its device is there."""
    GateSegment.create(tmp_path / "gates", DEVICE)

    def start(
        work, priority: str = "best_effort", checkpoint_s: float = 1_000.0, epoch: int = 1, **about
    ) -> WorkloadHost:
        module = types.ModuleType("fake_works")
        module.make = lambda spec, argument, folder: work
        monkeypatch.setitem(sys.modules, "fake_works", module)
        declared = {"name": "night", "kind": "finetune", "model": "m", "priority": priority, **about}
        spec = WorkloadSpec.model_validate(declared)
        order = HostOrder(
            epoch,
            Lease("1-1", "night", "gpu-0", 300, 0, 1),
            spec,
            DEVICE,
            None,
            tmp_path / "gates",
            tmp_path / "night",
            Factory("fake_works:make"),
            checkpoint_s,
        )
        return WorkloadHost(order, enter=lambda order: ThreadMeter())

    return start


def until(truth) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not truth():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


@pytest.mark.parametrize("priority", ["best_effort", "burstable", "guaranteed"])
def test_a_work_runs_to_its_end_and_leaves_the_gate(host, tmp_path, priority):
    status = host(Counting(500), priority).join(PATIENCE_S)
    assert (status.phase, status.end, status.result) == ("ended", "succeeded", {"counted": 500})
    assert GateSegment.open(tmp_path / "gates", "gpu-0").read().slots == ()


def test_a_preempted_work_goes_on_where_it_was(host):
    work = Counting(10**9)
    first = host(work)
    until(lambda: first.status().phase == "running" and work.done > 0)
    first.preempt(Order(1, "somebody asked"))
    status = first.join(PATIENCE_S)
    assert (status.phase, status.end) == ("ended", "preempted")
    again = Counting(work.done + 100)
    status = host(again).join(PATIENCE_S)
    assert status.resumed and status.result == {"counted": work.done + 100}


@pytest.mark.parametrize(("verb", "end"), [("stop", "stopped"), ("preempt", "preempted")])
def test_a_warm_up_that_is_to_stand_stays_without_a_share_until_it_is_told_to_leave(host, tmp_path, verb, end):
    running = host(Counting(20), "burstable", kind="warmup", options={"stand": True})
    until(lambda: running.status().stands)
    status = running.status()
    assert (status.phase, status.lease.milli, status.result) == ("running", 0, {"counted": 20})
    assert (status.progress.share, status.progress.doing) == (1.0, "stands by")
    assert GateSegment.open(tmp_path / "gates", "gpu-0").read().slots == ()
    assert running.adopt_epoch(Order(2)).lease.milli == 0
    getattr(running, verb)(Order(2))
    assert running.join(PATIENCE_S).end == end


def test_a_stopped_work_writes_no_checkpoint(host, tmp_path):
    work = Counting(10**9)
    running = host(work)
    until(lambda: work.done > 0)
    running.stop(Order(1))
    assert running.join(PATIENCE_S).end == "stopped"
    assert not (tmp_path / "night" / "checkpoints").exists()


def test_a_warned_work_checkpoints_and_goes_on(host, tmp_path):
    work = Counting(10**9)
    running = host(work)
    until(lambda: work.done > 0)
    assert running.status().checkpointed_s is None
    running.warn(Order(1, "the node is silent"))
    until(lambda: running.status().checkpointed_s is not None)
    done = work.done
    until(lambda: work.done > done)
    running.stop(Order(1))
    running.join(PATIENCE_S)


def test_checkpoints_come_by_themselves(host, tmp_path):
    running = host(Counting(10**9), checkpoint_s=0.05)
    until(lambda: (tmp_path / "night" / "checkpoints" / "checkpoint-00000003").exists())
    running.stop(Order(1))
    running.join(PATIENCE_S)


@pytest.mark.parametrize(
    ("fault", "end", "said"),
    [
        (DataError("table users has no rows"), "failed", "table users has no rows"),
        (ZeroDivisionError("by zero"), "crashed", "ZeroDivisionError: by zero"),
        (SystemExit(3), "crashed", "SystemExit: 3"),
    ],
)
def test_whatever_is_raised_becomes_the_reason_and_the_gate_is_left(host, tmp_path, fault, end, said):
    status = host(Counting(100, fault)).join(PATIENCE_S)
    assert (status.phase, status.end, status.reason) == ("ended", end, said)
    assert GateSegment.open(tmp_path / "gates", "gpu-0").read().slots == ()


def test_a_newer_epoch_is_adopted_and_an_older_one_refused(host):
    work = Counting(10**9)
    running = host(work, epoch=4)
    status = running.adopt_epoch(Order(7))
    assert (status.epoch, status.lease.epoch, status.lease.id) == (7, 7, "1-1")
    for order in (running.preempt, running.stop, running.warn, running.adopt_epoch):
        with pytest.raises(Conflict, match="epoch 6 is over"):
            order(Order(6))
    done = work.done
    until(lambda: work.done > done)
    running.stop(Order(7))
    assert running.join(PATIENCE_S).end == "stopped"
