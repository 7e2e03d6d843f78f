"""What a gate says about its members, for views and the controller, and the shares between two readings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pool.device import CAPACITY_MILLI
from pool.gate import layout
from pool.gate.layout import COMMANDS, JOINED, PRIORITIES, SLOTS, Command, slot_base
from pool.workload import WorkloadPriority

READ_TRIES = 3


@dataclass(frozen=True)
class SlotView:
    """One member of a device.

    Attributes:
        generation: of the slot; with the slot's number it names this membership.
        pid_start: ticks since boot at which its process started.
        metered_ns: device time it took since it joined.
        busy, waiting: it computes now; it waits for its turn, or has announced a request.
        steps: turns taken, or times guaranteed work was done.
        preemptions: waits that guaranteed work caused or prolonged.
        seen_ns: its last sign of life, in monotonic nanoseconds.
    """

    slot: int
    generation: int
    workload: str
    pid: int
    pid_start: int
    priority: WorkloadPriority
    weight_milli: int
    command: Command
    metered_ns: int
    busy: bool
    waiting: bool
    steps: int
    preemptions: int
    seen_ns: int


@dataclass(frozen=True)
class GateReading:
    """All members of a device at one time.

    Attributes:
        at_ns: monotonic nanoseconds.
        lanes: nanoseconds of device time there are in a nanosecond.
    """

    device_id: str
    at_ns: int
    lanes: int
    slots: tuple[SlotView, ...]


def read_slots(words: memoryview) -> tuple[SlotView, ...]:
    """Views of all members; one that comes or goes meanwhile is seen before or after, never in between."""
    views = (_read_slot(words, slot) for slot in range(SLOTS) if words[slot_base(slot) + layout.STATE] == JOINED)
    return tuple(view for view in views if view is not None)


def metered_ns(before: GateReading, after: GateReading) -> dict[str, int]:
    """Device time each workload took between two readings of one device, all its slots together.

    Memberships that ended in between are not counted; those that began are, from their start.
    """
    known = {(view.slot, view.generation): view.metered_ns for view in before.slots}
    used: dict[str, int] = {}
    for view in after.slots:
        took = view.metered_ns - known.get((view.slot, view.generation), 0)
        used[view.workload] = used.get(view.workload, 0) + took
    return used


def device_milli(before: GateReading, after: GateReading) -> dict[str, int]:
    """Metered thousandths of the device by workload; what is missing to 1000 was idle, or not metered."""
    available = (after.at_ns - before.at_ns) * after.lanes
    return {name: round(CAPACITY_MILLI * took / available) for name, took in metered_ns(before, after).items()}


def used_milli(before: GateReading, after: GateReading) -> dict[str, int]:
    """Thousandths of what was metered at all by workload, to hold against weights; 0 where nothing was."""
    used = metered_ns(before, after)
    total = sum(used.values()) or 1
    return {name: round(CAPACITY_MILLI * took / total) for name, took in used.items()}


def weights_milli(reading: GateReading) -> Mapping[str, int]:
    """Live weight of each workload, all its slots together."""
    weights: dict[str, int] = {}
    for view in reading.slots:
        weights[view.workload] = weights.get(view.workload, 0) + view.weight_milli
    return weights


def _read_slot(words: memoryview, slot: int) -> SlotView | None:
    base = slot_base(slot)
    for _ in range(READ_TRIES):
        before = words[base : base + layout.SLOT_WORDS].tolist()
        view = _view(words, slot, before)
        if (words[base + layout.STATE], words[base + layout.GENERATION]) == (JOINED, view.generation):
            return view
    return None


def _view(words: memoryview, slot: int, of: list[int]) -> SlotView:
    return SlotView(
        slot=slot,
        generation=of[layout.GENERATION],
        workload=layout.read_name(words, slot_base(slot) + layout.NAME),
        pid=of[layout.PID],
        pid_start=of[layout.PID_START],
        priority=PRIORITIES[of[layout.PRIORITY]],
        weight_milli=of[layout.WEIGHT],
        command=COMMANDS[of[layout.COMMAND]],
        metered_ns=of[layout.METERED],
        busy=of[layout.BUSY_SINCE] != 0,
        waiting=of[layout.WAITING_SINCE] != 0,
        steps=of[layout.STEPS],
        preemptions=of[layout.PREEMPTIONS],
        seen_ns=of[layout.SEEN],
    )
