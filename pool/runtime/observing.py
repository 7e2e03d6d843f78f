"""Observe: the controller's memory as the planner wants to see it.

A lease whose host was told to leave is not shown: it is decided already. Nor are workloads that a person holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from configs.pool_settings import PoolSettings
from pool.device import CAPACITY_MILLI, DeviceKind
from pool.lease import Lease
from pool.policy.cost_model import Prediction
from pool.policy.observation import DeviceView, LeaseView, PoolObservation, SliceMetrics, WorkloadView
from pool.runtime.messages import Claim
from pool.runtime.metering import Meters, meters_of
from pool.runtime.state import PoolState
from pool.workload import WorkloadSpec, WorkloadState

Predict = Callable[[WorkloadSpec], Mapping[DeviceKind, Prediction]]


def observe(state: PoolState, now_s: float, settings: PoolSettings, predict: Predict) -> PoolObservation:
    """What the planner sees; monotonic seconds throughout."""
    suspect_after_s = settings.runtime.suspect_after_s
    devices = tuple(
        DeviceView(device, state.health(device.id, now_s, suspect_after_s)) for device in state.ledger.devices()
    )
    leases = tuple(lease for lease in state.ledger.leases() if not _is_leaving(state, lease))
    workloads = [
        WorkloadView(record.state, record.queued_s, record.crashes_s, predict(record.spec))
        for record in state.records.values()
        if not record.held
    ]
    dead = {view.device.id for view in devices if view.health == "dead"}
    workloads += _serving(state, [lease for lease in leases if lease.id in state.claims and lease.device not in dead])
    views = tuple(
        LeaseView(lease.id, lease.workload, lease.device, lease.milli, lease.memory_bytes) for lease in leases
    )
    return PoolObservation(devices, tuple(workloads), views, dict(_metrics(state, leases)))


def all_meters(state: PoolState) -> dict[str, Meters]:
    """By lease."""
    known = {device.id for device in state.ledger.devices()}
    found: dict[str, Meters] = {}
    for device_id, before, after in state.reading_pairs():
        if device_id in known:
            found.update(meters_of(state.ledger.leases(device=device_id), before, after))
    return found


def serving_spec(claim: Claim, copies: int, milli: int) -> WorkloadSpec:
    """The workload that serving replicas are copies of: as many as there are, since Serve sees to their number."""
    return WorkloadSpec(
        name=claim.workload,
        kind="inference",
        model=claim.workload,
        version=claim.version,
        min_milli=max(1, milli),
        desired_milli=CAPACITY_MILLI,
        slo_ms=claim.slo_ms,
        tier=("cpu", "gpu", "npu"),
        replicas=max(1, copies),
    )


def _is_leaving(state: PoolState, lease: Lease) -> bool:
    seat = state.seats.get(lease.id)
    return seat is not None and seat.leaving is not None


def _serving(state: PoolState, leases: list[Lease]) -> Iterator[WorkloadView]:
    by_workload: dict[str, list[Lease]] = {}
    for lease in leases:
        by_workload.setdefault(lease.workload, []).append(lease)
    for name, held in by_workload.items():
        claim = state.claims[held[0].id].claim
        spec = serving_spec(claim, len(held), min(lease.milli for lease in held))
        yield WorkloadView(WorkloadState(spec, "running", "Serve runs it", held[0].device), predictions={})
        assert name == spec.name


def _metrics(state: PoolState, leases: tuple[Lease, ...]) -> Iterator[tuple[str, SliceMetrics]]:
    meters = all_meters(state)
    for lease in leases:
        claimed = state.claims.get(lease.id)
        p99_ms = claimed.claim.p99_ms if claimed else None
        metered = meters.get(lease.id)
        if metered is not None:
            yield lease.id, SliceMetrics(metered.weight_milli, metered.metered_milli, metered.wants, p99_ms)
        elif p99_ms is not None:
            yield lease.id, SliceMetrics(lease.milli, p99_ms=p99_ms)
