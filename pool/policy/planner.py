"""The planner: one tick turns what is seen of the pool into decisions, each with its reason.

    recover    leases lost with a device: warm copies take over, the rest goes back to be placed
    end        leases of finished work, copies too many, crash loops
    place      missing copies and leases on draining devices, by priority and then age; where guaranteed or
               burstable work fits nowhere, less important work moves or is preempted
    relieve    devices whose guaranteed work misses its SLO at full shares
    share      the live weights of every device

It works from the state of the pool, not from its changes: what was decided and did not happen is decided
again, and what is as it should be gets no decision.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from configs.pool_settings import PoolSettings
from pool.device import CAPACITY_MILLI
from pool.policy.book import PROVISIONAL, Book
from pool.policy.decisions import Decision, Grant, Resume, SetShares
from pool.policy.moves import Tick, find_place, force_place, migrate, preempt, resume_wait_s
from pool.policy.observation import LeaseView, PlannerState, PoolObservation, SliceMetrics, WorkloadView
from pool.policy.recovery import ACTIVE, park_crashing, recover_lost, release_ended
from pool.policy.relief import relieve
from pool.policy.shares import DeviceShares, SliceView, share_device
from pool.workload import RANK, WorkloadSpec


def tick(
    seen: PoolObservation, state: PlannerState, now_s: float, settings: PoolSettings
) -> tuple[tuple[Decision, ...], PlannerState]:
    """Decide what is to change now.

    Args:
        now_s: monotonic seconds, read by the caller; on the clock of every time in ``seen``.
    """
    under_way = Tick(Book(seen), state, now_s, settings)
    _remember(under_way, seen)
    recover_lost(under_way)
    release_ended(under_way)
    park_crashing(under_way)
    _place_missing(under_way)
    relieve(under_way, seen.metrics)
    shares, short_since_s = _share(under_way, seen)
    after = PlannerState(shares, under_way.setbacks, under_way.moved_s, short_since_s, under_way.waiting)
    return tuple(under_way.book.decisions), after


def _remember(tick: Tick, seen: PoolObservation) -> None:
    """Carry over what still matters; nothing of what is gone."""
    movement, leases = tick.settings.movement, {lease.id for lease in seen.leases}
    for name, setback in tick.state.setbacks.items():
        if name in tick.book.workloads and tick.now_s - setback.at_s < movement.calm_s:
            tick.setbacks[name] = setback
    for lease, moved_s in tick.state.moved_s.items():
        if lease in leases and tick.now_s - moved_s < movement.move_dwell_s:
            tick.moved_s[lease] = moved_s


@dataclass(frozen=True)
class _Need:
    """One lease to be placed: a copy that is missing, or one that must leave its device."""

    about: WorkloadView
    leaving: LeaseView | None = None

    @property
    def order(self) -> tuple[int, bool, float, str, str]:
        rank, lease = RANK[self.about.state.spec.rank], self.leaving.id if self.leaving else ""
        return rank, self.leaving is not None, self.about.queued_s, self.about.name, lease

    def asks(self, spec: WorkloadSpec) -> tuple[object, ...]:
        """All that decides, besides its size, which devices can take it."""
        return spec.tier, spec.rank, self.leaving.device if self.leaving else None


def _place_missing(tick: Tick) -> None:
    for need in sorted(_needs(tick), key=lambda each: each.order):
        if need.leaving is None and _must_wait(tick, need.about):
            continue
        spec = need.about.state.spec if need.leaving is None else tick.book.spec_of(need.leaving)
        hopeless = _hopeless(tick, need, spec)
        if hopeless is not None:
            _leave(tick, need, hopeless)
            continue
        found = find_place(tick, need.about, spec, need.leaving)
        if found.device_id is None:
            found = force_place(tick, spec, need.leaving) or found
        if found.device_id is None:
            tick.refused.setdefault(need.asks(spec), []).append((spec.min_milli, spec.memory_bytes))
            _leave(tick, need, found.reason)
        elif need.leaving is not None:
            migrate(tick, need.leaving, found.device_id, f"device {need.leaving.device} drains; {found.reason}")
        else:
            _grant(tick, need.about, found.device_id, found.reason)


def _hopeless(tick: Tick, need: _Need, spec: WorkloadSpec) -> str | None:
    """Why it need not be tried: as much or less was refused in this tick to work of its kind.

    That holds for the rest of the tick. What is free on a device or held there by less important work only
    becomes less while work of one rank is placed, whoever gives way or moves.
    """
    for milli, memory_bytes in tick.refused.get(need.asks(spec), ()):
        if milli <= spec.min_milli and memory_bytes <= spec.memory_bytes:
            return f"no device has {milli} milli and {memory_bytes} bytes of {' or '.join(spec.tier)} free, or more"
    return None


def _needs(tick: Tick) -> Iterator[_Need]:
    for name, about in tick.book.workloads.items():
        missing = about.state.spec.replicas - tick.book.count_serving(name)
        if missing > 0 and about.state.phase in ACTIVE:
            yield from (_Need(about) for _ in range(missing))
    for lease in tick.book.draining():
        about = tick.book.workloads.get(lease.workload)
        if about is not None and not lease.shadow:
            yield _Need(about, lease)


def _must_wait(tick: Tick, about: WorkloadView) -> bool:
    """Whether a workload backs off from a crash, or was preempted only just now."""
    setback = tick.setbacks.get(about.name)
    if about.name not in tick.waiting and setback is not None:
        wait_s = resume_wait_s(setback, tick.settings)
        if tick.now_s - setback.at_s < wait_s:
            tick.waiting[about.name] = f"it was preempted {setback.count} times; it resumes {wait_s:g} s after the last"
    return about.name in tick.waiting


def _leave(tick: Tick, need: _Need, reason: str) -> None:
    """What fits nowhere waits; interruptible work makes way for a drain all the same."""
    if need.leaving is not None and RANK[need.about.state.spec.rank] > 0:
        preempt(tick, need.leaving, f"device {need.leaving.device} drains; {reason}")
    tick.waiting[need.about.name] = reason


def _grant(tick: Tick, about: WorkloadView, device: str, reason: str) -> None:
    spec = about.state.spec
    resumes = about.state.phase == "preempted" or spec.name in tick.requeued
    decision = Resume if resumes else Grant
    tick.book.grant(spec, device)
    tick.book.decisions.append(decision(spec.name, device, spec.min_milli, spec.memory_bytes, reason))


def _share(tick: Tick, seen: PoolObservation) -> tuple[dict[str, DeviceShares], dict[str, float]]:
    """Weights of every device; what is remembered of them, and since when devices are short."""
    shares: dict[str, DeviceShares] = {}
    short_since_s: dict[str, float] = {}
    metrics, before, nothing, settings = seen.metrics, tick.state.shares, DeviceShares(), tick.settings.shares
    for device, leases in tick.book.by_device():
        slices = [_slice(tick, lease, metrics.get(lease.id)) for lease in leases]
        if not slices or sum([each.min_milli for each in slices]) > CAPACITY_MILLI:
            continue
        decided, after = share_device(slices, before.get(device, nothing), tick.now_s, settings)
        shares[device] = _without_provisional(after) if tick.book.has_granted else after
        if decided.weights is not None:
            weights = tuple(pair for pair in decided.weights if not pair[0].startswith(PROVISIONAL))
            tick.book.decisions.append(SetShares(device, weights, decided.reason))
        if decided.short and any(each.rank == "guaranteed" and each.lease in decided.short for each in slices):
            short_since_s[device] = (
                tick.now_s if device in tick.relieved else tick.state.short_since_s.get(device, tick.now_s)
            )
    return shares, short_since_s


def _without_provisional(shares: DeviceShares) -> DeviceShares:
    return DeviceShares({lease: each for lease, each in shares.claims.items() if not lease.startswith(PROVISIONAL)})


def _slice(tick: Tick, lease: LeaseView, metrics: SliceMetrics | None) -> SliceView:
    """A lease with its metrics. A warm copy, a new lease and unknown work keep to their minimum."""
    about = tick.book.workloads.get(lease.workload)
    if metrics is None:
        metrics = SliceMetrics(lease.milli, wants=not lease.shadow)
    if about is None or lease.shadow or lease.id.startswith(PROVISIONAL):
        return SliceView(
            lease.id, lease.workload, "guaranteed", lease.milli, lease.milli, metrics.weight_milli, wants=False
        )
    spec = about.state.spec
    milli, wanted_milli = lease.milli, spec.wanted_milli
    return SliceView(
        lease.id,
        lease.workload,
        spec.rank,
        milli,
        wanted_milli if wanted_milli > milli else milli,
        metrics.weight_milli,
        metrics.metered_milli,
        metrics.wants,
        metrics.p99_ms,
        spec.slo_ms,
    )
