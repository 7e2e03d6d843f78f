"""Observe: the controller's memory as the planner wants to see it.

A lease whose host was told to leave is not shown: it is decided already. Nor are workloads that a person holds.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from configs.pool_settings import PoolSettings
from pool.lease import Lease
from pool.policy.observation import DeviceView, LeaseView, PoolObservation, SliceMetrics, WorkloadView
from pool.release_costs import FUNNEL
from pool.runtime.claiming import wanted_copies, wanted_milli
from pool.runtime.knowledge import Know
from pool.runtime.messages import Claim
from pool.runtime.metering import Meters, meters_of
from pool.runtime.state import PoolState
from pool.workload import WorkloadAttributes, WorkloadSpec, WorkloadState


def observe(state: PoolState, now_s: float, settings: PoolSettings, know: Know) -> PoolObservation:
    """What the planner sees; monotonic seconds throughout."""
    suspect_after_s = settings.runtime.suspect_after_s
    devices = tuple(
        DeviceView(device, state.health(device.id, now_s, suspect_after_s)) for device in state.ledger.devices()
    )
    leases = tuple(lease for lease in state.ledger.leases() if not _is_leaving(state, lease))
    workloads = []
    for record in state.records.values():
        if not record.held:
            known = know(record.spec)
            view = WorkloadView(record.state, record.queued_s, record.crashes_s, known.predictions, known.costs)
            workloads.append(view)
    dead = {view.device.id for view in devices if view.health == "dead"}
    served = [lease for lease in leases if lease.id in state.claims and lease.device not in dead]
    workloads += _serving(state, served, know)
    views = tuple(_view(state, lease) for lease in leases)
    return PoolObservation(devices, tuple(workloads), views, dict(_metrics(state, leases)))


def all_meters(state: PoolState) -> dict[str, Meters]:
    """By lease."""
    known = {device.id for device in state.ledger.devices()}
    pids = {lease_id: seat.claim.pid for lease_id, seat in state.claims.items()}
    shadows = {lease_id for lease_id, seat in state.claims.items() if seat.claim.shadow}
    found: dict[str, Meters] = {}
    for device_id, before, after in state.reading_pairs():
        if device_id in known:
            found.update(meters_of(state.ledger.leases(device=device_id), before, after, pids, shadows))
    return found


def serving_spec(claim: Claim, copies: int, milli: int) -> WorkloadSpec:
    """The workload that serving replicas are copies of: as many as there are, since Serve sees to their number."""
    return WorkloadSpec(
        name=claim.workload,
        kind="inference",
        model=FUNNEL,
        version=claim.version,
        min_milli=max(1, milli),
        slo_ms=claim.slo_ms,
        tier=("cpu", "gpu", "npu"),
        replicas=max(1, copies),
        attributes=WorkloadAttributes(batch_rows=_usual_rows(claim)),
    )


def _usual_rows(claim: Claim) -> int:
    """Of the batches that were seen most often; 1 before any were."""
    return max(claim.batches, key=lambda each: each.runs).rows if claim.batches else 1


def _view(state: PoolState, lease: Lease) -> LeaseView:
    """A serving replica claims once it is warm, so its copy is ready."""
    seat = state.claims.get(lease.id)
    shadow, since_s = (seat.claim.shadow, seat.since_s) if seat is not None else (False, 0.0)
    return LeaseView(
        lease.id, lease.workload, lease.device, lease.milli, lease.memory_bytes, shadow=shadow, since_s=since_s
    )


def served_spec(state: PoolState, held: Sequence[Lease]) -> WorkloadSpec:
    """The workload that leases of serving replicas are copies of, some of them perhaps of shadows."""
    claim = state.claims[held[0].id].claim
    serving = [lease for lease in held if not state.stands_by(lease.id)]
    milli = min((lease.milli for lease in serving), default=0)
    if not serving and held[0].device in state.sites:
        milli = wanted_milli(replace(claim, shadow=False), state.sites[held[0].device])
    return serving_spec(claim, wanted_copies(claim, len(serving), len(held)), milli)


def _is_leaving(state: PoolState, lease: Lease) -> bool:
    seat = state.seats.get(lease.id)
    return seat is not None and seat.leaving is not None


def _serving(state: PoolState, leases: list[Lease], know: Know) -> Iterator[WorkloadView]:
    by_workload: dict[str, list[Lease]] = {}
    for lease in leases:
        by_workload.setdefault(lease.workload, []).append(lease)
    for name, held in by_workload.items():
        spec = served_spec(state, held)
        assert name == spec.name
        known, running = know(spec), WorkloadState(spec, "running", "Serve runs it", held[0].device)
        yield WorkloadView(running, predictions=known.predictions, costs=known.costs, served=True)


def _metrics(state: PoolState, leases: tuple[Lease, ...]) -> Iterator[tuple[str, SliceMetrics]]:
    meters = all_meters(state)
    for lease in leases:
        claimed = state.claims.get(lease.id)
        p99_ms = claimed.claim.p99_ms if claimed else None
        metered, seat = meters.get(lease.id), state.seats.get(lease.id)
        if metered is not None:
            yield lease.id, SliceMetrics(metered.weight_milli, metered.metered_milli, metered.wants, p99_ms)
        elif seat is not None and seat.status is not None and seat.status.stands:
            yield lease.id, SliceMetrics(lease.milli, wants=False)
        elif p99_ms is not None:
            yield lease.id, SliceMetrics(lease.milli, p99_ms=p99_ms)
