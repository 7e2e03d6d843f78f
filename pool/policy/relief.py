"""Relief of devices that are short: guaranteed work misses its SLO there though its shares cannot grow."""

from __future__ import annotations

from collections.abc import Mapping

from pool.policy.moves import Tick, find_place, give_way, migrate
from pool.policy.observation import LeaseView, SliceMetrics
from pool.workload import RANK


def relieve(tick: Tick, metrics: Mapping[str, SliceMetrics]) -> None:
    """Take one lease off each device that has been short for long enough.

    Interruptible work goes first, the least important and largest of it. Guaranteed work goes to a neighbour
    only where none of that is left, and only to one that is less loaded with it even then; each such
    move evens the load out, so that moves end.
    """
    for device, since_s in tick.state.short_since_s.items():
        room = tick.book.rooms.get(device)
        if room is None or tick.now_s - since_s < tick.settings.movement.relieve_after_s:
            continue
        missing = [lease for lease in tick.book.on(device) if _misses(tick, lease, metrics.get(lease.id))]
        if not missing:
            continue
        lower = sorted(tick.book.tenants[device], key=lambda each: (-RANK[each.rank], -each.milli, each.lease))
        if lower:
            give_way(tick, lower[:1], f"guaranteed work on {device} misses its SLO at full shares")
            tick.relieved.add(device)
        else:
            _move_guaranteed(tick, device, missing)


def _move_guaranteed(tick: Tick, device: str, missing: list[LeaseView]) -> None:
    load = {name: _guaranteed_milli(tick, name) for name in tick.book.rooms}
    for lease in sorted(missing, key=lambda each: (each.milli, each.id)):
        if lease.id in tick.moved_s:
            continue
        loaded = {name for name, milli in load.items() if milli + lease.milli >= load[device]}
        about = tick.book.workloads[lease.workload]
        found = find_place(tick, about, tick.book.spec_of(lease), lease, {*loaded, *tick.short})
        if found.device_id is not None and not found.scores[0].misses_slo:
            migrate(tick, lease, found.device_id, f"misses its SLO on {device} at full shares; {found.reason}")
            tick.moved_s[lease.id] = tick.now_s
            tick.relieved.add(device)
            return


def _guaranteed_milli(tick: Tick, device: str) -> int:
    gives_way = sum(each.milli for each in tick.book.tenants[device])
    return sum(lease.milli for lease in tick.book.on(device)) - gives_way


def _misses(tick: Tick, lease: LeaseView, metrics: SliceMetrics | None) -> bool:
    about = tick.book.workloads.get(lease.workload)
    if about is None or lease.shadow or metrics is None or metrics.p99_ms is None:
        return False
    spec = about.state.spec
    return RANK[spec.rank] == 0 and spec.slo_ms is not None and metrics.p99_ms > spec.slo_ms
