"""The first moves of a tick: what was lost with a device, what is over, what crashes again and again."""

from __future__ import annotations

from pool.policy.breaker import judge
from pool.policy.decisions import Park, PromoteShadow, Release, Requeue
from pool.policy.moves import Tick, give_way
from pool.policy.observation import LeaseView, WorkloadView
from pool.policy.victims import Tenant, choose_victims
from pool.workload import RANK, WorkloadPhase

ACTIVE: frozenset[WorkloadPhase] = frozenset({"queued", "starting", "running", "preempted", "migrating"})
"""Phases in which a workload is to hold leases."""


def recover_lost(tick: Tick) -> None:
    """For each lease on a dead device: a warm copy takes over, or the work goes back to be placed."""
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
            _promote(tick, about, lease, gone)
            _release(tick, lease, gone)


def release_ended(tick: Tick) -> None:
    """Leases of work that is over, and copies above the number wanted. Leases of unknown work stay: a planner
    that was just started must not end what it has not heard of yet."""
    for about in tick.book.workloads.values():
        held = tick.book.held(about.name)
        if about.state.phase not in ACTIVE:
            for lease in held:
                _end(tick, lease, f"{about.name} is {about.state.phase}")
        elif len(held) > about.state.spec.replicas:
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


def _promote(tick: Tick, about: WorkloadView, lost: LeaseView, gone: str) -> None:
    """Let the smallest-id warm copy serve whose device has room for its growth, or can make it."""
    spec = about.state.spec
    for shadow in sorted(tick.book.held(about.name), key=lambda each: each.id):
        room = tick.book.rooms[shadow.device]
        if not shadow.shadow or not shadow.ready or not room.open:
            continue
        milli, memory_bytes = max(shadow.milli, spec.min_milli), max(shadow.memory_bytes, spec.memory_bytes)
        lack_milli = milli - shadow.milli - room.free_milli
        victims = _givers(tick, shadow.device, lack_milli, memory_bytes - shadow.memory_bytes - room.free_bytes)
        if victims is not None:
            give_way(tick, victims, f"makes room for the copy of {spec.name}")
            tick.book.promote(shadow, milli, memory_bytes)
            reason = f"{gone}; its warm copy on {shadow.device} takes over"
            promoted = PromoteShadow(shadow.id, spec.name, shadow.device, milli, memory_bytes, lost.id, reason)
            tick.book.decisions.append(promoted)
            return


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
