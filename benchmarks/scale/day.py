"""A day of ten thousand million requests on so many devices, on which a rack and a zone are lost."""

from __future__ import annotations

import math
from typing import Any

from benchmarks.traces import REPORTED_FROM, located

DAY_S = 86_400.0
REQUESTS_A_DAY = 10e9
TRACE = "nyc_taxi.csv"
"""Half-hours of 2014-07-01 to 2015-01-31; services follow it some hours apart, as their users are."""
TRACE_DAYS = 215
ZONES, NODES, NODE = 4, 5, 5
"""Zones, nodes of a rack, devices of a node."""
LEAST_REPLICAS = 450
"""Of all services together: they are at most half used at the day's peak, so that three zones of four can carry it."""
LEASE_MILLI = 600
"""Of a replica: what it uses at the peak with a quarter of the others gone, so that no two share a device."""
PROFILE = {
    "batch_rows": [1, 2, 4, 8, 16, 32],
    "p50_ms": [2.3, 3.2, 5.0, 8.6, 15.9, 30.4],
    "p99_ms": [3.4, 4.8, 7.3, 12.2, 21.8, 40.6],
    "start_s": 30,
}
"""Batch times that are assumed, not measured: of the shape that services measure of themselves."""


def day_of(devices: int, seconds: float, interval_s: float, with_failures: bool = True) -> dict[str, Any]:
    """The scenario, as plain values.

    Args:
        devices: a multiple of 100.
    """
    services = max(10, devices // 100)
    replicas = math.ceil(max(LEAST_REPLICAS, devices // 5) / services)
    return {
        "seed": 1,
        "duration_s": seconds,
        "interval_s": interval_s,
        "mode": "intervals",
        "kinds": {"gpu": {"start_s": 120, "price_per_hour": 2.0, "memory_bytes": 40 << 30, "emulated": True}},
        "fleet": [{"kind": "gpu", "zones": ZONES, "racks": devices // 100, "nodes": NODES, "devices": NODE}],
        "services": [_service(at, services, replicas) for at in range(services)],
        "works": [
            {"name": "tune", "kind": "finetune", "copies": devices // 2, "min_milli": 300, "memory_bytes": 8 << 30},
            {"name": "warm", "kind": "warmup", "copies": devices // 20, "min_milli": 100, "units": 400_000},
            {"name": "check", "kind": "evaluate", "copies": devices // 50, "min_milli": 100, "memory_bytes": 2 << 30},
        ],
        "failures": _failures(seconds) if with_failures else {},
    }


def _service(at: int, services: int, replicas: int) -> dict[str, Any]:
    hours = 6.0 * at / services
    return {
        "name": f"scene-{at}",
        "replicas": replicas,
        "min_milli": LEASE_MILLI,
        "memory_bytes": 6 << 30,
        "slo_ms": 100,
        "overhead_ms": 1.5,
        "max_batch_rows": 32,
        "profiles": {"gpu": PROFILE | {"emulated": True}},
        "demand": {
            "trace": str(located(TRACE)),
            "skip_s": round(TRACE_DAYS * REPORTED_FROM) * DAY_S + hours * 3_600,
            "mean_per_s": REQUESTS_A_DAY / DAY_S / services,
        },
    }


def _failures(seconds: float) -> dict[str, Any]:
    """A rack, later a zone, and single nodes as they come."""
    return {
        "planned": [
            {"at_s": 0.25 * seconds, "level": "rack", "name": "z1-r0", "for_s": 0.05 * seconds},
            {"at_s": 0.5 * seconds, "level": "zone", "name": "z2", "for_s": 0.05 * seconds},
        ],
        "random": {"node": {"mtbf_hours": 2_000, "repair_s": 1_800}},
    }
