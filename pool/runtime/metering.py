"""What the gates say about each lease: weight, metered time, whether it wants the device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pool.gate.readings import GateReading, device_milli
from pool.lease import Lease


@dataclass(frozen=True)
class Meters:
    """Of one lease; those of several copies of a workload on one device are averages of theirs."""

    weight_milli: int
    metered_milli: int
    wants: bool
    preemptions: int


def meters_of(leases: tuple[Lease, ...], before: GateReading, after: GateReading) -> Mapping[str, Meters]:
    """By lease, of those leases of one device whose holder has joined its gate.

    The gate knows workloads, not leases: copies of one workload on one device are told apart by nobody.
    """
    took = device_milli(before, after) if after.at_ns > before.at_ns else {}
    copies: dict[str, int] = {}
    for lease in leases:
        copies[lease.workload] = copies.get(lease.workload, 0) + 1
    found = {}
    for lease in leases:
        slots = [slot for slot in after.slots if slot.workload == lease.workload]
        if slots:
            count, metered = copies[lease.workload], took.get(lease.workload, 0)
            found[lease.id] = Meters(
                weight_milli=sum(slot.weight_milli for slot in slots) // count,
                metered_milli=metered // count,
                wants=metered > 0 or any(slot.busy or slot.waiting for slot in slots),
                preemptions=sum(slot.preemptions for slot in slots) // count,
            )
    return found
