"""The moves of one tick: place, preempt, migrate, each entered into the book with its reason."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from configs.pool_settings import PoolSettings
from pool.policy.book import Book
from pool.policy.decisions import Migrate, Preempt
from pool.policy.observation import LeaseView, PlannerState, Setback, WorkloadView
from pool.policy.placement import PlacementDecision, place
from pool.policy.victims import Tenant
from pool.workload import RANK, WorkloadSpec


@dataclass
class Tick:
    """One tick under way: the book, and what will be remembered of it.

    Attributes:
        refused: sizes, milli and bytes, that found no place, by who asked; see `planner._hopeless`.
        migrated: where in the book's decisions a lease was migrated in this tick.
        relieved: devices that a lease was just taken off; they get time to show the effect.
        requeued: workloads that lost a lease with its device in this tick.
    """

    book: Book
    state: PlannerState
    now_s: float
    settings: PoolSettings
    setbacks: dict[str, Setback] = field(default_factory=dict)
    moved_s: dict[str, float] = field(default_factory=dict)
    waiting: dict[str, str] = field(default_factory=dict)
    migrated: dict[str, int] = field(default_factory=dict)
    relieved: set[str] = field(default_factory=set)
    requeued: set[str] = field(default_factory=set)
    refused: dict[object, list[tuple[int, int]]] = field(default_factory=dict)

    @property
    def short(self) -> Collection[str]:
        """Devices on which guaranteed work missed its SLO at the last tick; they take no lower work."""
        return self.state.short_since_s.keys()


def find_place(
    tick: Tick, about: WorkloadView, spec: WorkloadSpec, leaving: LeaseView | None = None, avoid: Collection[str] = ()
) -> PlacementDecision:
    """A device for one lease of a workload as it stands now, or the reason that there is none.

    Args:
        leaving: the lease that is to move; it is no copy to keep away from, and its device is no choice.
    """
    peers = [lease for lease in tick.book.held(spec.name) if leaving is None or lease.id != leaving.id]
    return place(
        spec,
        tick.book.rooms.values(),
        about.predictions,
        tick.settings.placement,
        about.costs,
        peers=[tick.book.rooms[lease.device].device for lease in peers],
        avoid=_avoided(tick, spec, avoid, leaving),
        prices=tick.book.prices,
        table=tick.book.table,
        shown=1,
    )


def force_place(tick: Tick, spec: WorkloadSpec, leaving: LeaseView | None = None) -> PlacementDecision | None:
    """Make room for a workload that fits nowhere by moving or preempting less important work; None when even
    all of that holds too little."""
    avoided = _avoided(tick, spec, (), leaving)
    copies_on = {lease.device for lease in tick.book.held(spec.name) if lease != leaving}
    room = tick.book.clearings.cheapest(spec, avoided, copies_on)
    if room is None:
        return None
    give_way(tick, room.victims, f"makes room for {spec.rank} {spec.name}")
    names = ", ".join(each.workload for each in room.victims)
    return PlacementDecision(room.device_id, f"fits nowhere else; {names} gave way")


def give_way(tick: Tick, victims: Sequence[Tenant], reason: str) -> None:
    """Move victims to where they fit, and preempt those that fit nowhere."""
    for victim in victims:
        lease = tick.book.leases[victim.lease]
        if not _take_back(tick, lease, reason):
            about = tick.book.workloads[lease.workload]
            found = find_place(tick, about, tick.book.spec_of(lease), lease)
            if found.device_id is None:
                preempt(tick, lease, reason)
            else:
                migrate(tick, lease, found.device_id, reason)


def migrate(tick: Tick, lease: LeaseView, device: str, reason: str) -> None:
    tick.migrated[lease.id] = len(tick.book.decisions)
    tick.book.decisions.append(
        Migrate(lease.id, lease.workload, lease.device, device, lease.milli, lease.memory_bytes, reason)
    )
    tick.book.move(lease, device)


def preempt(tick: Tick, lease: LeaseView, reason: str) -> None:
    tick.book.decisions.append(Preempt(lease.id, lease.workload, lease.device, reason))
    _set_back(tick, lease)


def resume_wait_s(setback: Setback, settings: PoolSettings) -> float:
    """From a preemption to the earliest resumption: doubles with each in a row."""
    doublings = min(setback.count - 1, 64)
    return min(settings.movement.resume_longest_s, settings.movement.resume_after_s * 2.0**doublings)


def _take_back(tick: Tick, lease: LeaseView, reason: str) -> bool:
    """Preempt at its old place what this tick has migrated already: one move less, and never two of one lease."""
    number = tick.migrated.pop(lease.id, None)
    if number is None:
        return False
    made = tick.book.decisions[number]
    assert isinstance(made, Migrate), made
    tick.book.decisions[number] = Preempt(lease.id, lease.workload, made.source, reason)
    _set_back(tick, lease)
    return True


def _set_back(tick: Tick, lease: LeaseView) -> None:
    tick.book.drop(lease)
    before = tick.setbacks.get(lease.workload)
    if before is None or before.at_s < tick.now_s:
        tick.setbacks[lease.workload] = Setback(before.count + 1 if before else 1, tick.now_s)


def _avoided(tick: Tick, spec: WorkloadSpec, avoid: Collection[str], leaving: LeaseView | None) -> set[str]:
    """Devices that are no choice: where it is now, and those short of share, for all but guaranteed work."""
    own = {leaving.device} if leaving is not None else set()
    return own | set(avoid) | (set(tick.short) if RANK[spec.rank] > 0 else set())
