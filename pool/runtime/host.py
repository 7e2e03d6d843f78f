"""The host of one running copy of a workload: a process on a device, in its gate, with the work on its own thread.

It holds its lease until the work has left the gate. Whatever happens to the work is told by `status`; nothing
but the loss of the process itself is left for others to find out.
"""

from __future__ import annotations

import importlib
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from configs.errors import Conflict, RecpoolError
from pool import checkpoints
from pool.gate.meters import Meter, ThreadMeter
from pool.gate.segment import GateSegment
from pool.gate.slot import GateSlot
from pool.gate.stepper import MicroStepper
from pool.runtime.messages import HostEnd, HostOrder, HostStatus, Order
from pool.work import Work

log = logging.getLogger("recpool.pool")
TURN_WAIT_S = 0.1
"""How long the work waits for its turn before it looks whether it is to stop."""
ENDED: dict[str, HostEnd] = {"preempt": "preempted", "stop": "stopped"}


class WorkloadHost:
    """Runs one copy of a workload; methods may be called by several threads.

    Args:
        enter: puts this process on the device and returns the meter of its device time.
    """

    def __init__(self, order: HostOrder, enter: Callable[[HostOrder], Meter] | None = None):
        self._order = order
        self._enter = enter or enter_device
        self._lock = threading.Lock()
        self._status = HostStatus(order.lease, order.spec, order.epoch, os.getpid(), "starting")
        self._checkpoint_at_s: float | None = None
        self._leave: str | None = None
        self._warned = threading.Event()
        self._thread = threading.Thread(target=self._main, name="work", daemon=True)
        self._thread.start()

    def status(self) -> HostStatus:
        with self._lock:
            at_s = self._checkpoint_at_s
            return replace(self._status, checkpointed_s=None if at_s is None else time.monotonic() - at_s)

    def preempt(self, order: Order) -> HostStatus:
        """Checkpoint and leave the device, soon; `status` tells when it has. Raises Conflict for an older epoch."""
        return self._told(order, "preempt")

    def stop(self, order: Order) -> HostStatus:
        """Leave the device without a checkpoint. Raises Conflict for an older epoch."""
        return self._told(order, "stop")

    def warn(self, order: Order) -> HostStatus:
        """Checkpoint soon: the device may be lost. Raises Conflict for an older epoch."""
        status = self.adopt_epoch(order)
        self._warned.set()
        return status

    def adopt_epoch(self, order: Order) -> HostStatus:
        """Obey this epoch and no older one from here on; answers with what is held."""
        with self._lock:
            newest = self._status.epoch
            if order.epoch < newest:
                raise Conflict(f"{self._order.spec.name}: epoch {order.epoch} is over, the newest is {newest}")
            lease = replace(self._status.lease, epoch=order.epoch)
            self._status = replace(self._status, epoch=order.epoch, lease=lease)
        return self.status()

    def join(self, timeout_s: float) -> HostStatus:
        """Wait until the work has ended, or the time is over."""
        self._thread.join(timeout_s)
        return self.status()

    def _told(self, order: Order, verb: str) -> HostStatus:
        status = self.adopt_epoch(order)
        if self._leave != "stop":
            self._leave = verb
        return status

    def _main(self) -> None:
        """The edge of the work's thread: what is raised inside becomes the reason it ended for."""
        try:
            end, reason, result = self._run()
        except RecpoolError as error:
            end, reason, result = "failed", error.message, {}
            log.error("%s failed: %s", self._order.spec.name, error.message)
        except BaseException as error:  # noqa: BLE001 - told by status(); there is no caller to raise to
            end, reason, result = "crashed", f"{type(error).__name__}: {error}", {}
            log.exception("%s crashed", self._order.spec.name)
        self._say(phase="ended", end=end, reason=reason, result=result)

    def _run(self) -> tuple[HostEnd, str, Mapping[str, Any]]:
        order = self._order
        meter = self._enter(order)
        folder = order.folder / "work"
        folder.mkdir(parents=True, exist_ok=True)
        work: Work = _function(order.factory.path)(order.spec, order.factory.argument, folder)
        resumed = checkpoints.restore_latest(self._checkpoints, work) is not None
        segment = GateSegment.open(order.gate_folder, order.device.id)
        # The segment stays mapped for the life of the process: nobody needs it closed before that.
        with segment.join(order.spec.name, order.spec.rank, order.lease.milli, meter) as slot:
            self._checkpoint_at_s = time.monotonic() if resumed else None
            self._say(phase="running", resumed=resumed, progress=work.progress())
            leave = self._work(work, slot)
        if leave is None and order.spec.stands:
            leave = self._stand(work)
        if leave is None:
            self._checkpoint(work)  # its result may take long, and must not cost the work before it
            return "succeeded", "its work is done", work.result()
        return ENDED[leave], "as it was told", {}

    def _work(self, work: Work, slot: GateSlot) -> str | None:
        """Step by step until there is nothing left to do (None), or it is to leave (why)."""
        stepper, begun_s = MicroStepper(), time.monotonic()
        step = self._step_first if self._order.spec.rank == "guaranteed" else self._step_in_turn
        done: int | None = None
        while done != 0:
            if self._leave == "stop":
                return "stop"
            if self._leave == "preempt" or slot.command == "yield":
                self._checkpoint(work)
                return "preempt"
            due_s = (self._checkpoint_at_s or begun_s) + self._order.checkpoint_s
            if self._warned.is_set() or time.monotonic() >= due_s:
                self._warned.clear()
                self._checkpoint(work)
            done = step(work, slot, stepper)
            if done:
                self._say(progress=work.progress())
        return None

    def _stand(self, work: Work) -> str:
        """Stay outside of the gate, with everything that was loaded, until it is to leave (why)."""
        with self._lock:
            lease = replace(self._status.lease, milli=0)
        progress = replace(work.progress(), doing="stands by")
        self._say(lease=lease, progress=progress, result=work.result(), stands=True)
        while self._leave is None:
            time.sleep(TURN_WAIT_S)
        if self._leave == "preempt":
            self._checkpoint(work)
        return self._leave

    @staticmethod
    def _step_in_turn(work: Work, slot: GateSlot, stepper: MicroStepper) -> int | None:
        """Units done in one turn; None when it was not this member's turn in time."""
        turn = slot.wait_turn(TURN_WAIT_S)
        if turn is None:
            return None
        units = stepper.units
        with turn:
            done = work.step(units)
        if done:
            stepper.observe(done, turn.metered_ns / 1e6)
        return done

    @staticmethod
    def _step_first(work: Work, slot: GateSlot, stepper: MicroStepper) -> int:
        """Guaranteed work waits for nobody."""
        before_ns = slot.metered_ns
        with slot.busy():
            done = work.step(stepper.units)
        if done:
            stepper.observe(done, (slot.metered_ns - before_ns) / 1e6)
        return done

    def _checkpoint(self, work: Work) -> None:
        """Outside of turns: what is written waits for the disk, not for the device."""
        checkpoints.write(self._checkpoints, work)
        self._checkpoint_at_s = time.monotonic()

    @property
    def _checkpoints(self) -> Path:
        return self._order.folder / "checkpoints"

    def _say(self, **news: Any) -> None:
        with self._lock:
            self._status = replace(self._status, **news)


def enter_device(order: HostOrder) -> Meter:
    """Put this process on the order's device: its cores, or its accelerator with the lease's memory.

    Raises:
        ConfigError, Conflict: as `pool.gate.cpu.enter_device` and `pool.gate.gpu.enter_device`.
    """
    if order.index is None:
        from pool.gate import cpu  # torch takes seconds to import, and the controller knows this module

        return cpu.enter_device(order.device, order.spec.rank).meter
    if order.device.kind == "npu":
        return ThreadMeter()  # no back end of its own: host time is what can be metered
    import torch

    from pool.gate import gpu

    seat = gpu.enter_device(0, order.spec.rank, order.lease.memory_bytes)  # the only one this process sees
    torch.cuda.set_stream(seat.stream)  # of this thread, the work's
    return seat.meter


def _function(path: str) -> Callable[..., Work]:
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)
