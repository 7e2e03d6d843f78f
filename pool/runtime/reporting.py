"""Report: the controller's memory as views show it."""

from __future__ import annotations

from pool.device import Device
from pool.lease import Lease
from pool.runtime.metering import Meters
from pool.runtime.observing import all_meters, serving_spec
from pool.runtime.state import PoolState
from pool.views import DeviceReport, PoolReport, SliceReport, WorkloadReport
from pool.workload import WorkloadState

SERVED_BY = "Serve runs it"


def report(state: PoolState, now_s: float, age_s: float, suspect_after_s: float) -> PoolReport:
    """The whole pool.

    Args:
        now_s: monotonic.
        age_s: since the last tick.
    """
    meters = all_meters(state)
    devices = tuple(_device(state, device, meters, now_s, suspect_after_s) for device in state.ledger.devices())
    return PoolReport(state.ledger.epoch, age_s, devices, workload_reports(state, now_s), tuple(state.decisions))


def workload_reports(state: PoolState, now_s: float) -> tuple[WorkloadReport, ...]:
    """Declared workloads in the order they came, then those that Serve runs."""
    declared = [record.report(now_s) for record in state.records.values()]
    return (*declared, *_served(state))


def _served(state: PoolState) -> list[WorkloadReport]:
    found: dict[str, WorkloadReport] = {}
    for lease_id, claimed in state.claims.items():
        name = claimed.claim.workload
        if name not in found:
            leases = state.ledger.leases(workload=name)
            spec = serving_spec(claimed.claim, len(leases), min((each.milli for each in leases), default=1))
            state_ = WorkloadState(spec, "running", SERVED_BY, state.ledger.lease(lease_id).device)
            found[name] = WorkloadReport(
                name, spec.kind, spec.rank, state_.phase, SERVED_BY, state_.device, 0, 0.0, spec.model_dump(mode="json")
            )
    return list(found.values())


def _device(
    state: PoolState, device: Device, meters: dict[str, Meters], now_s: float, suspect_after_s: float
) -> DeviceReport:
    free_milli, free_bytes = state.ledger.free(device.id)
    return DeviceReport(
        id=device.id,
        kind=device.kind,
        label=device.label,
        emulated=device.emulated,
        node=device.topology.node,
        health=state.health(device.id, now_s, suspect_after_s),
        memory_bytes=device.memory_bytes,
        free_milli=free_milli,
        free_bytes=free_bytes,
        slices=tuple(_slice(state, lease, meters.get(lease.id)) for lease in state.ledger.leases(device=device.id)),
    )


def _slice(state: PoolState, lease: Lease, metered: Meters | None) -> SliceReport:
    record, seat, claimed = (
        state.records.get(lease.workload),
        state.seats.get(lease.id),
        state.claims.get(lease.id),
    )
    spec = record.spec if record else serving_spec(claimed.claim, 1, lease.milli) if claimed else None
    status = seat.status if seat else None
    progress = status.progress if status else None
    p99_ms = claimed.claim.p99_ms if claimed else None
    return SliceReport(
        lease=lease.id,
        workload=lease.workload,
        kind=spec.kind if spec else "inference",
        priority=spec.rank if spec else "guaranteed",
        version=spec.version if spec else None,
        leased_milli=lease.milli,
        share_milli=metered.weight_milli if metered else 0,
        metered_milli=metered.metered_milli if metered else 0,
        memory_bytes=lease.memory_bytes,
        queue=claimed.claim.queue if claimed else 0,
        headroom=1 - p99_ms / spec.slo_ms if spec and spec.slo_ms and p99_ms is not None else None,
        progress=progress.share if progress is not None and progress.total else None,
        steps_per_s=seat.steps_per_s if seat else None,
        preemptions=metered.preemptions if metered else 0,
    )
