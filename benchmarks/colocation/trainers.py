"""The process that trains beside inference, in whatever manner an arm asks for.

Each run has a thread of its own that the kernel schedules as the manner says: one that is idle once need not be let
back. It does the units of one and the same work, so that the manners are compared on the same units.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.colocation import works
from benchmarks.colocation.arms import Arm, Manner, stretch
from benchmarks.gate_members import running
from configs.settings import Settings
from pool import checkpoints
from pool.device import CAPACITY_MILLI, Device
from pool.gate.cpu import enter_device
from pool.gate.meters import Meter, ThreadMeter
from pool.lease import Lease
from pool.runtime.host import WorkloadHost
from pool.runtime.messages import Factory, HostOrder, HostStatus, Order
from pool.work import Work

NICE = 19
STEP_UNITS = 4
"""Of a trainer that asks nobody: it only looks whether it is to end between two steps."""
PATIENCE_S = 60.0
EPOCH = 1


@dataclass(frozen=True)
class Tally:
    """What a trainer got done. cpu_s: processor time of its process meanwhile."""

    units: int
    seconds: float
    cpu_s: float

    @property
    def per_s(self) -> float:
        return self.units / self.seconds


@dataclass(frozen=True)
class Trainer:
    """A training process, as the benchmark talks to it."""

    pipe: Connection

    @contextmanager
    def training(self, arm: Arm) -> Iterator[list[Tally]]:
        """Train in the arm's manner while the block runs; its tally is in the list afterwards."""
        tallies: list[Tally] = []
        self._ask(arm)
        try:
            yield tallies
        finally:
            tallies.append(self._ask("end"))

    def lost_units(self) -> int:
        """Preempt the work, take it up again from its checkpoint, and say how many of its units are gone; the last."""
        return self._ask("check")

    def _ask(self, what: Any) -> Any:
        self.pipe.send(what)
        return self.pipe.recv()


@contextmanager
def trainer(kind: str, settings: Settings, gates: Path, device: Device) -> Iterator[Trainer]:
    """A trainer on a device whose gate lies in the folder, set up and waiting, until the block ends."""
    with running(_train, kind, settings, gates, device) as pipe:
        yield Trainer(pipe)


class FreeRun:
    """Training that asks nobody: how much it gets is up to the kernel, or to the fixed part that it keeps to."""

    def __init__(self, work: Work, manner: Manner, milli: int):
        self._work, self._manner, self._milli = work, manner, milli
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._main, daemon=True)
        self._thread.start()

    def end(self) -> None:
        self._ended.set()
        self._thread.join()

    def _main(self) -> None:
        if self._manner == "idle":
            be_idle()
        elif self._manner == "nice":
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), NICE)
        while not self._ended.is_set():
            before_ns = time.thread_time_ns()
            self._work.step(STEP_UNITS)
            stretch(time.thread_time_ns() - before_ns, self._milli)


class HostedRun:
    """Training as the pool does it: by the host of a best-effort workload, at the gate."""

    def __init__(self, order: HostOrder):
        self._host = WorkloadHost(order, _enter)
        while self._host.status().phase == "starting":
            time.sleep(0.001)

    def end(self) -> None:
        self._host.stop(Order(EPOCH))
        assert self._left().end == "stopped"

    def preempt(self) -> None:
        self._host.preempt(Order(EPOCH))
        assert self._left().end == "preempted"

    def _left(self) -> HostStatus:
        status = self._host.join(PATIENCE_S)
        assert status.phase == "ended", "the work did not leave the device"
        return status


def be_idle() -> None:
    """Let the kernel run the calling thread, and no other of this process, where nothing else wants the core."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))


def _enter(order: HostOrder) -> Meter:
    be_idle()  # as `pool.gate.cpu.enter_device` does for a process
    return ThreadMeter()


_prepared: dict[str, Work] = {}


def prepared(spec: Any, name: str, folder: Path) -> Work:
    """The factory of the host's work: the one that this process has set up."""
    return _prepared[name]


def _train(pipe: Connection, kind: str, settings: Settings, gates: Path, device: Device) -> None:
    enter_device(device, "guaranteed")
    folder = settings.home / "trainers" / f"{kind}-{device.id}"
    work = _prepared[kind] = works.make(kind, settings, folder / "work")
    works.begin(work)
    order = _order(kind, gates, folder, device)
    pipe.send("ready")
    while (told := pipe.recv()) != "stop":
        if told == "check":
            pipe.send(_lost_units(order, work, works.make(kind, settings, folder / "again")))
            continue
        arm: Arm = told
        run = HostedRun(order) if arm.manner == "gate" else FreeRun(work, arm.manner or "normal", arm.training_milli)
        before = _mark(work)
        pipe.send("running")
        told = pipe.recv()
        run.end()
        after = _mark(work)
        pipe.send(Tally(int(after[0] - before[0]), after[1] - before[1], after[2] - before[2]))
        if told == "stop":
            break


def _mark(work: Work) -> tuple[float, float, float]:
    return work.progress().done, time.monotonic(), time.process_time()


def _lost_units(order: HostOrder, work: Work, again: Work) -> int:
    run = HostedRun(order)
    time.sleep(0.2)
    run.preempt()
    assert checkpoints.restore_latest(order.folder / "checkpoints", again) is not None
    works.read(again)
    return work.progress().done - again.progress().done


def _order(kind: str, gates: Path, folder: Path, device: Device) -> HostOrder:
    spec, milli = works.finetune(), CAPACITY_MILLI // 2
    lease = Lease(f"{EPOCH}-1", spec.name, device.id, milli, 0, EPOCH)
    factory = Factory("benchmarks.colocation.trainers:prepared", kind)
    return HostOrder(EPOCH, lease, spec, device, None, gates, folder, factory, checkpoint_s=1e9)
