"""Report: the controller's memory as views show it."""

from __future__ import annotations

from dataclasses import replace

from pool.device import Device
from pool.lease import Lease
from pool.runtime.knowledge import Know, Known
from pool.runtime.metering import Meters
from pool.runtime.observing import all_meters, served_spec, serving_spec
from pool.runtime.state import PoolState
from pool.views import CostReport, DeviceReport, PoolReport, SliceReport, WorkloadReport
from pool.workload import WorkloadSpec

SERVED_BY = "Serve runs it"
AT_HOME = "on the node of its replica: a device of its tier, with the fewest copies of it, then the most share free"
"""See `claiming`."""


def report(state: PoolState, now_s: float, age_s: float, suspect_after_s: float, know: Know) -> PoolReport:
    """The whole pool.

    Args:
        now_s: monotonic.
        age_s: since the last tick.
    """
    meters = all_meters(state)
    devices = tuple(_device(state, device, meters, now_s, suspect_after_s) for device in state.ledger.devices())
    workloads = workload_reports(state, now_s, know)
    return PoolReport(state.ledger.epoch, age_s, devices, workloads, tuple(state.decisions), state.ledger.book())


def workload_reports(state: PoolState, now_s: float, know: Know) -> tuple[WorkloadReport, ...]:
    """Declared workloads in the order they came, then those that Serve runs."""
    records = state.records.values()
    declared = [replace(each.report(now_s), costs=cost_reports(each.spec, know(each.spec))) for each in records]
    return (*declared, *_served(state, know))


def cost_reports(spec: WorkloadSpec, known: Known) -> tuple[CostReport, ...]:
    """By kind of device, in the order of the workload's tiers."""
    found, rows = [], spec.attributes.batch_rows
    for kind, used in known.predictions.items():
        graph, profile = known.by_graph.get(kind), known.profiles.get(kind)
        measured_ms = profile.latency(rows).p99_ms if profile else None
        predicted_ms = graph.latency_ms if graph else None
        emulated = profile is not None and profile.emulated
        found.append(CostReport(kind, rows, predicted_ms, measured_ms, emulated, used.share_milli, used.source))
    return tuple(found)


def _served(state: PoolState, know: Know) -> list[WorkloadReport]:
    found: dict[str, WorkloadReport] = {}
    for lease_id, claimed in state.claims.items():
        name = claimed.claim.workload
        if name not in found:
            spec = served_spec(state, [each for each in state.ledger.leases(workload=name) if each.id in state.claims])
            found[name] = WorkloadReport(
                name=name,
                kind=spec.kind,
                priority=spec.rank,
                phase="running",
                reason=SERVED_BY,
                device=state.ledger.lease(lease_id).device,
                restarts=0,
                queued_s=0.0,
                spec=spec.model_dump(mode="json"),
                placement=AT_HOME,
                costs=cost_reports(spec, know(spec)),
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
        shadow=state.stands_by(lease.id) or (status is not None and status.stands),
    )
