"""The agent of one node: keeps the gates of its devices, reads them, and writes what the controller says.

A member of a gate that a signal has stopped keeps its turn and its lease, and nothing is heard of it. The agent ends
it, so that it is lost as one that died, and what it did goes on elsewhere.
"""

from __future__ import annotations

import logging
import os
import signal
import threading
from contextlib import suppress
from pathlib import Path

from configs.errors import Conflict, NotFound, RecpoolError
from pool.gate import layout
from pool.gate.control import GateControl
from pool.gate.cpu import set_class
from pool.gate.readings import GateReading, SlotView, weights_milli
from pool.gate.segment import GateSegment
from pool.runtime import discovery
from pool.runtime.messages import Cut, GateOrder, NodeFound, NodeReading

log = logging.getLogger("recpool.pool")
STOPPED = "T"
"""State of a process that a signal has stopped; one that a debugger holds is ``t`` (proc(5))."""


class NodeAgent:
    """One actor on every node. It only obeys: a controller of an older epoch than it has heard of is refused."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._gates: dict[str, tuple[GateSegment, GateControl]] = {}
        self._epoch = 0
        self._stopped: set[tuple[str, int, int]] = set()
        set_class("guaranteed")

    def discover(self, folder: Path) -> NodeFound:
        """What the node has, and the newest epoch that its gates in a folder have seen."""
        return NodeFound(
            discovery.usable_cores(),
            discovery.memory_bytes(),
            discovery.accelerators(),
            max(self._epoch, newest_epoch(folder)),
        )

    def open(self, order: GateOrder) -> None:
        """Make or open gates and take them over for an epoch.

        Raises:
            Conflict: a newer controller has been here.
            ArtifactError: a file in the folder is no gate.
        """
        with self._lock:
            self._check(order.epoch)
            self._epoch = order.epoch
            wanted = {device.id: device for device in order.devices}
            for device_id in [*wanted, *(set(self._gates) - set(wanted))]:
                known = self._gates.get(device_id)
                segment = known[0] if known else GateSegment.create(order.folder, wanted[device_id])
                self._gates[device_id] = segment, GateControl(segment, order.epoch)

    def read(self) -> NodeReading:
        """Every gate, dead members swept and those ended that were stopped at the last reading, too; that it answers
        is its heartbeat."""
        readings = []
        with self._lock:
            for segment, _ in self._gates.values():
                segment.sweep()
                readings.append(segment.read())
            self._end_stopped(readings)
            return NodeReading(self._epoch, tuple(readings))

    def cut(self, cut: Cut) -> None:
        """Write weights; a workload that has not joined yet, or has left, is passed over.

        Raises:
            Conflict: a newer controller has been here.
        """
        with self._lock:
            self._check(cut.epoch)
            gate = self._gates.get(cut.device)
            if gate is not None:
                members = weights_milli(gate[0].read())
                with suppress(NotFound):  # one has left since
                    gate[1].set_weights({name: weight for name, weight in cut.weights.items() if name in members})

    def _end_stopped(self, readings: list[GateReading]) -> None:
        stopped = {
            (reading.device_id, slot.slot, slot.generation): slot
            for reading in readings
            for slot in reading.slots
            if is_stopped(slot)
        }
        for membership in self._stopped & stopped.keys():
            slot = stopped[membership]
            log.error("%s (process %d) is ended: a signal has stopped it", slot.workload, slot.pid)
            with suppress(ProcessLookupError):
                os.kill(slot.pid, signal.SIGKILL)
        self._stopped = set(stopped)

    def _check(self, epoch: int) -> None:
        if epoch < self._epoch:
            raise Conflict(f"agent: epoch {epoch} is over, a controller of epoch {self._epoch} has taken over")


def is_stopped(slot: SlotView) -> bool:
    """Whether a signal has stopped the process that joined; its id may be another's by now."""
    try:
        stat = Path(f"/proc/{slot.pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    fields = stat.rpartition(")")[2].split()  # from the third on: the second is a name that may hold anything
    return fields[0] == STOPPED and int(fields[19]) == slot.pid_start


def newest_epoch(folder: Path) -> int:
    """Of all gates in a folder; 0 when there are none. Files that are no gates are left for `open` to refuse."""
    newest = 0
    for path in folder.glob("*.gate"):
        with suppress(RecpoolError):
            segment = GateSegment.open(folder, path.name.removesuffix(".gate"))
            try:
                with segment.membership() as words:
                    newest = max(newest, words[layout.H_EPOCH])
            finally:
                segment.close()
    return newest
