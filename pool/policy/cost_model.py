"""The cost model: how long a workload's batch takes on each kind of device, and how much of one it needs."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from configs.pool_settings import PoolSettings
from pool.device import CAPACITY_MILLI, DeviceKind
from pool.policy.latency import GraphCosts, Latency, LatencyProfile, roofline
from pool.workload import WorkloadSpec


@dataclass(frozen=True)
class Prediction:
    """Of one workload on one kind of device.

    Attributes:
        latency_ms: p99 of a batch that has the whole device.
        share_milli: smallest slice that keeps the SLO and carries the load; above 1000 when no device does.
        source: what it rests on.
    """

    latency_ms: float
    share_milli: int
    source: Literal["profile", "roofline"]


def predict(
    spec: WorkloadSpec,
    kind: DeviceKind,
    profile: LatencyProfile | None,
    costs: GraphCosts | None,
    settings: PoolSettings,
    batches_per_s: float = 0.0,
) -> Prediction | None:
    """From the profile, else from the graph; None when there is neither.

    A profile is of the model as it runs, so the declared attributes change only what the graph predicts.

    Args:
        batches_per_s: expected of this replica; 0 when unknown.
    """
    rows = spec.attributes.batch_rows
    if profile is not None:
        latency = profile.latency(rows)
    elif costs is not None:
        latency = roofline(costs, rows, kind, settings.roofline, spec.attributes)
    else:
        return None
    return Prediction(
        latency.p99_ms,
        needed_milli(spec, latency, settings, batches_per_s),
        "roofline" if profile is None else "profile",
    )


def needed_milli(spec: WorkloadSpec, latency: Latency, settings: PoolSettings, batches_per_s: float = 0.0) -> int:
    """Smallest slice for a workload: a slice of s thousandths takes 1000/s times as long as the whole device.

    It is large enough for the p99 to stay within its share of the SLO, for the load to leave it some
    idle time, and never less than the minimum that the workload states.
    """
    needed = float(spec.min_milli)
    if spec.slo_ms is not None:
        needed = max(needed, CAPACITY_MILLI * latency.p99_ms / (spec.slo_ms * settings.placement.slo_share))
    busy = batches_per_s * latency.p50_ms / 1_000
    needed = max(needed, CAPACITY_MILLI * busy / settings.placement.busy_share)
    return math.ceil(needed - 1e-9)


def predict_kinds(
    spec: WorkloadSpec,
    profiles: Mapping[DeviceKind, LatencyProfile],
    costs: GraphCosts | None,
    settings: PoolSettings,
    batches_per_s: float = 0.0,
) -> dict[DeviceKind, Prediction]:
    """For every kind of the workload's tiers that something is known of."""
    found: dict[DeviceKind, Prediction | None] = {
        kind: predict(spec, kind, profiles.get(kind), costs, settings, batches_per_s) for kind in spec.tier
    }
    return {kind: prediction for kind, prediction in found.items() if prediction is not None}
