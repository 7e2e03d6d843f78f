"""What the gates say about each lease: weight, metered time, whether it wants the device."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pool.device import CAPACITY_MILLI
from pool.gate.readings import GateReading, SlotView
from pool.lease import Lease


@dataclass(frozen=True)
class Meters:
    """Of one lease; those of several copies of a workload on one device may be averages of theirs."""

    weight_milli: int
    metered_milli: int
    wants: bool
    preemptions: int


def meters_of(
    leases: Sequence[Lease],
    before: GateReading,
    after: GateReading,
    pids: Mapping[str, int] | None = None,
    shadows: Collection[str] = (),
) -> Mapping[str, Meters]:
    """By lease, of those leases of one device whose holder has joined its gate.

    Args:
        pids: of the holders of some leases. The gate knows workloads, not leases: copies of one workload on one
            device are told apart by their process alone.
        shadows: ids of leases; a weight is that of the copies that serve.
    """
    pids = pids or {}
    found = {}
    for lease in leases:
        slots = [slot for slot in after.slots if slot.workload == lease.workload]
        if not slots:
            continue
        copies = [each for each in leases if each.workload == lease.workload]
        serving = sum(each.id not in shadows for each in copies)
        own = [slot for slot in slots if slot.pid == pids.get(lease.id)]
        count = 1 if own else len(copies)
        own = own or slots
        metered = _milli(own, before, after) // count
        weight = sum(slot.weight_milli for slot in slots) // max(1, serving)
        found[lease.id] = Meters(
            weight_milli=0 if lease.id in shadows else weight,
            metered_milli=metered,
            wants=metered > 0 or any(slot.busy or slot.waiting for slot in own),
            preemptions=sum(slot.preemptions for slot in own) // count,
        )
    return found


def _milli(slots: Sequence[SlotView], before: GateReading, after: GateReading) -> int:
    """Thousandths of the device that these members took between two readings."""
    available_ns = (after.at_ns - before.at_ns) * after.lanes
    if available_ns <= 0:
        return 0
    known = {(view.slot, view.generation): view.metered_ns for view in before.slots}
    took_ns = sum(view.metered_ns - known.get((view.slot, view.generation), 0) for view in slots)
    return round(CAPACITY_MILLI * took_ns / available_ns)
