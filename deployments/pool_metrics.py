"""A report of the pool as Prometheus metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.exposition import generate_latest
from prometheus_client.registry import Collector

from pool.views import CostReport, DecisionReport, DeviceReport, PoolReport, SliceReport, WorkloadReport

METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "recpool_pool_"

Labels = dict[str, str]
Figure = tuple[str, str, Callable[[Any], float | None]]
"""Name, help, and the value of a thing; None where it has none."""

POOL: tuple[Figure, ...] = (
    ("epoch", "Of the controller; a higher one has taken over.", lambda p: p.epoch),
    ("age_seconds", "Since the controller's last tick.", lambda p: p.age_s),
)
DEVICE: tuple[Figure, ...] = (
    ("device_free_milli", "Thousandths of the device that are not leased.", lambda d: d.free_milli),
    ("device_free_bytes", "Memory of the device that is not leased.", lambda d: d.free_bytes),
    ("device_memory_bytes", "Memory of the device.", lambda d: d.memory_bytes),
)
SLICE: tuple[Figure, ...] = (
    ("slice_leased_milli", "Thousandths of the device that the slice is sure of.", lambda s: s.leased_milli),
    ("slice_share_milli", "Weight of the slice in the device's gate.", lambda s: s.share_milli),
    ("slice_metered_milli", "Thousandths of the device's time taken in the last second.", lambda s: s.metered_milli),
    ("slice_memory_bytes", "Memory held with the lease.", lambda s: s.memory_bytes),
    ("slice_queue", "Requests that wait.", lambda s: s.queue),
    ("slice_slo_headroom_ratio", "1 - p99 / SLO; below 0 the SLO is missed.", lambda s: s.headroom),
    ("slice_progress_ratio", "Share done; of a warm-up, how warm it is.", lambda s: s.progress),
    ("slice_steps_per_second", "Units of work a second.", lambda s: s.steps_per_s),
    ("slice_shadow", "1 for a warm copy that stands by.", lambda s: s.shadow),
)
WORKLOAD: tuple[Figure, ...] = (
    ("workload_queued_seconds", "How long it has waited for a slice.", lambda w: w.queued_s),
    ("workload_restarts", "Times it came back after a crash, within the breaker's window.", lambda w: w.restarts),
    ("workload_progress_ratio", "Share done.", lambda w: w.progress),
)
PREEMPTIONS: Figure = (
    "slice_preemptions",
    "Times the slice gave way at the gate since it joined.",
    lambda s: s.preemptions,
)
COST: tuple[Figure, ...] = (
    ("workload_predicted_ms", "p99 of a batch on a whole device, by the model's graph.", lambda c: c.predicted_ms),
    ("workload_measured_ms", "p99 of a batch on a whole device, as measured.", lambda c: c.measured_ms),
    ("workload_needed_milli", "Smallest slice that keeps the SLO.", lambda c: c.share_milli),
)
LAST_DECISIONS = 8
"""So many have a sample; each is a series of its own."""
DECISION: Figure = (
    "decision_timestamp_seconds",
    f"When it was decided, since 1970; of the last {LAST_DECISIONS} decisions.",
    lambda d: d.at_s,
)
DEVICE_INFO: Figure = ("device_info", "1; emulated devices are CPU cores in the place of another kind.", lambda d: 1)
WORKLOAD_INFO: Figure = ("workload_info", "1; the phase it is in, and the device it runs or last ran on.", lambda w: 1)


def metrics_text(report: PoolReport) -> bytes:
    """Text format 0.0.4. What has no value, or no finite one, is left out."""
    return generate_latest(_Report(report))


class _Report(Collector):
    """A report in the place of a registry."""

    def __init__(self, report: PoolReport):
        self._report = report

    def collect(self) -> Iterator[Metric]:
        devices = [(_device(each), each) for each in self._report.devices]
        slices = [(_slice(device, each), each) for device in self._report.devices for each in device.slices]
        workloads = [(_workload(each), each) for each in self._report.workloads]
        yield from (_gauge(figure, [({}, self._report)]) for figure in POOL)
        yield _gauge(DEVICE_INFO, [({**labels, "node": d.node, "health": d.health}, d) for labels, d in devices])
        yield from (_gauge(figure, devices) for figure in DEVICE)
        yield from (_gauge(figure, slices) for figure in SLICE)
        yield _filled(CounterMetricFamily, PREEMPTIONS, slices)
        yield _gauge(
            WORKLOAD_INFO, [({**labels, "phase": w.phase, "device": w.device or ""}, w) for labels, w in workloads]
        )
        yield from (_gauge(figure, workloads) for figure in WORKLOAD)
        costs = [(_cost(workload, each), each) for workload in self._report.workloads for each in workload.costs]
        yield from (_gauge(figure, costs) for figure in COST)
        yield _gauge(DECISION, _last(self._report.decisions))


def _device(device: DeviceReport) -> Labels:
    return {"device": device.id, "device_kind": device.kind, "emulated": str(device.emulated).lower()}


def _slice(device: DeviceReport, each: SliceReport) -> Labels:
    return {**_device(device), "lease": each.lease, **_named(each.workload, each.kind, each.priority)}


def _workload(each: WorkloadReport) -> Labels:
    return _named(each.name, each.kind, each.priority)


def _cost(workload: WorkloadReport, each: CostReport) -> Labels:
    about = {"device_kind": each.kind, "batch_rows": str(each.batch_rows), "emulated": str(each.emulated).lower()}
    return {**_workload(workload), **about, "source": each.source}


def _last(decisions: Sequence[DecisionReport]) -> list[tuple[Labels, DecisionReport]]:
    """The last decisions; of several that say the same, the newest."""
    newest = sorted(decisions, key=lambda each: each.at_s)[-LAST_DECISIONS:]
    by_words = {(each.what, each.reason): each for each in newest}
    return [({"what": what, "reason": reason}, each) for (what, reason), each in by_words.items()]


def _named(workload: str, kind: str, priority: str) -> Labels:
    return {"workload": workload, "kind": kind, "priority": priority}


def _gauge(figure: Figure, things: Sequence[tuple[Labels, Any]]) -> Metric:
    return _filled(GaugeMetricFamily, figure, things)


def _filled(
    family: type[GaugeMetricFamily | CounterMetricFamily], figure: Figure, things: Sequence[tuple[Labels, Any]]
) -> Metric:
    """A metric with a sample for each thing that has a finite value; all things have labels of the same names."""
    name, about, value_of = figure
    metric = family(PREFIX + name, about, labels=list(things[0][0]) if things else [])
    for labels, thing in things:
        value = value_of(thing)
        if value is not None and math.isfinite(value):
            metric.add_metric(list(labels.values()), value)
    return metric
