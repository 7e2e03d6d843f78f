"""The first moves of a tick: what was lost, what is over, what crashes again and again."""

from __future__ import annotations

from collections import Counter

from pool.policy.breaker import judge
from pool.policy.decisions import Park, PromoteShadow, Release, Requeue, StandBy
from pool.policy.moves import Tick, give_way
from pool.policy.observation import LeaseView, WorkloadView
from pool.policy.victims import Tenant, choose_victims
from pool.workload import RANK, WorkloadPhase

ACTIVE: frozenset[WorkloadPhase] = frozenset({"queued", "starting", "running", "preempted", "migrating"})
"""Phases in which a workload is to hold leases."""
SETTLED_S = 5.0
"""After which a copy may change its role only to spread the load: whoever routes calls knows of it by then."""


def recover_lost(tick: Tick) -> None:
    """For each lease on a dead device, a warm copy takes over, or the work goes back to be placed; then warm copies
    take over for copies whose lease is gone already."""
    workloads = tick.book.workloads
    for lease in sorted(tick.book.lost, key=lambda lost: (_rank(workloads.get(lost.workload)), lost.id)):
        about = workloads.get(lease.workload)
        gone = f"device {lease.device} is {tick.book.health.get(lease.device, 'unknown')}"
        if about is None or about.state.phase not in ACTIVE or lease.shadow:
            _release(tick, lease, gone)
        elif _rank(about) > 0:
            tick.book.decisions.append(Requeue(lease.id, lease.workload, lease.device, gone))
            tick.requeued.add(lease.workload)
        else:
            _promote(tick, about, lease.id, gone)
            _release(tick, lease, gone)
    for name in sorted({lease.workload for lease in tick.book.leases.values() if lease.shadow}):
        about = workloads.get(name)
        if about is not None and about.state.phase in ACTIVE:
            _fill(tick, about)
            if about.served:
                _spread(tick, about)


def release_ended(tick: Tick) -> None:
    """Leases of work that is over, and copies above the number wanted. Leases of unknown work stay: a planner
    that was just started must not end what it has not heard of yet."""
    for name, about in tick.book.workloads.items():
        if about.state.phase not in ACTIVE:
            for lease in tick.book.held(name):
                _end(tick, lease, f"{name} is {about.state.phase}")
        elif tick.book.count(name) > about.state.spec.replicas:
            serving = sorted(
                tick.book.serving(about.name), key=lambda each: (tick.book.health[each.device] != "alive", each.id)
            )
            for lease in serving[about.state.spec.replicas :]:
                _end(tick, lease, f"{about.name} wants {about.state.spec.replicas} copies")


def park_crashing(tick: Tick) -> None:
    """Park what crashed too often. Copies that run go on: only work that does not run at all is parked."""
    for about in tick.book.workloads.values():
        if not about.crashes_s or about.state.phase not in ACTIVE:
            continue
        verdict = judge(about.crashes_s, tick.now_s, tick.settings.breaker)
        if verdict.kind == "start":
            continue
        tick.waiting[about.name] = verdict.reason
        running = about.state.phase == "running" and tick.book.serving(about.name)
        if verdict.kind == "park" and not running:
            for lease in tick.book.held(about.name):
                _end(tick, lease, verdict.reason)
            tick.book.decisions.append(Park(about.name, verdict.reason))


def _fill(tick: Tick, about: WorkloadView) -> None:
    """Let warm copies serve where copies are missing."""
    missing = about.state.spec.replicas - len(tick.book.serving(about.name))
    for _ in range(missing):
        if not _promote(tick, about, "", f"a copy of {about.name} is gone"):
            return


def _promote(tick: Tick, about: WorkloadView, lost: str, gone: str) -> bool:
    """Let a warm copy serve whose device has room for its growth, or can make it: the one with the fewest copies
    beside it, and of those the smallest id."""
    crowd = Counter(lease.device for lease in tick.book.serving(about.name))
    for shadow in sorted(_shadows(tick, about), key=lambda each: (crowd[each.device], each.id)):
        if _take_over(tick, about, shadow, lost, f"{gone}; its warm copy on {shadow.device} takes over"):
            return True
    return False


def _shadows(tick: Tick, about: WorkloadView) -> list[LeaseView]:
    """Copies that could take over. What is served elsewhere goes on where the pool has no view of a device."""
    held = [lease for lease in tick.book.held(about.name) if lease.shadow and lease.ready]
    return [lease for lease in held if tick.book.rooms[lease.device].open or about.served]


def _take_over(tick: Tick, about: WorkloadView, shadow: LeaseView, lost: str, reason: str) -> bool:
    spec, room = about.state.spec, tick.book.rooms[shadow.device]
    milli, memory_bytes = max(shadow.milli, spec.min_milli), max(shadow.memory_bytes, spec.memory_bytes)
    lack_milli = milli - shadow.milli - room.free_milli
    lack_bytes = memory_bytes - shadow.memory_bytes - room.free_bytes
    victims = _givers(tick, shadow.device, lack_milli, lack_bytes)
    if victims is None and not about.served:
        return False
    if victims is None:  # it serves all the same, on what there is
        milli, memory_bytes = milli - max(0, lack_milli), memory_bytes - max(0, lack_bytes)
    give_way(tick, victims or (), f"makes room for the copy of {spec.name}")
    tick.book.promote(shadow, milli, memory_bytes)
    tick.book.decisions.append(PromoteShadow(shadow.id, spec.name, shadow.device, milli, memory_bytes, lost, reason))
    return True


def _spread(tick: Tick, about: WorkloadView) -> None:
    """Exchange the roles of two copies where one device serves twice, since a warm copy there took over, and the warm
    copy of another could serve alone."""
    settled = [lease for lease in tick.book.held(about.name) if tick.now_s - lease.since_s >= SETTLED_S]
    crowd = Counter(lease.device for lease in tick.book.serving(about.name))
    shadows = [lease for lease in _shadows(tick, about) if lease in settled and tick.book.rooms[lease.device].open]
    serving = [lease for lease in settled if not lease.shadow]
    if not shadows or not serving:
        return
    shadow = min(shadows, key=lambda each: (crowd[each.device], each.id))
    spare = max(serving, key=lambda each: (crowd[each.device], each.since_s, each.id))
    many, few = crowd[spare.device], crowd[shadow.device]
    if many - few < 2:
        return
    reason = f"{spare.device} serves {many} copies of {about.name}, {shadow.device} {few}"
    if _take_over(tick, about, shadow, "", reason):
        tick.book.stand_by(spare)
        tick.book.decisions.append(StandBy(spare.id, spare.workload, spare.device, reason))


def _givers(tick: Tick, device: str, lack_milli: int, lack_bytes: int) -> tuple[Tenant, ...] | None:
    if lack_milli <= 0 and lack_bytes <= 0:
        return ()
    return choose_victims(tick.book.tenants[device], lack_milli, lack_bytes)


def _end(tick: Tick, lease: LeaseView, reason: str) -> None:
    tick.book.drop(lease)
    _release(tick, lease, reason)


def _release(tick: Tick, lease: LeaseView, reason: str) -> None:
    tick.book.decisions.append(Release(lease.id, lease.workload, lease.device, reason))


def _rank(about: WorkloadView | None) -> int:
    return RANK[about.state.spec.rank] if about is not None else len(RANK)
