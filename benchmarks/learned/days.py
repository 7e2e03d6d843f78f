"""Days of the taxi trace on a small pool that serves, warms up and fine-tunes."""

from __future__ import annotations

from typing import Any

from benchmarks.scale.day import PROFILE
from benchmarks.traces import REPORTED_FROM, located
from pool.simulator.reading import Loaded, load

DAY_S = 86_400.0
TRACE, TRACE_DAYS = "nyc_taxi.csv", 215
SPEED = 24.0
"""A day is played in an hour: splits act within seconds, and demand still changes slowly against them."""
INTERVAL_S = 10.0
PEAK_PER_S = 1_400.0
"""Of a day: about a third of what the replicas can answer at most, so that answers are quick and steps of other work
stand out against them."""


def split_days(count: int) -> tuple[list[int], list[int]]:
    """Days to learn from, and days that are held out: evenly chosen of the trace's parts before and from 70%."""
    border = int(TRACE_DAYS * REPORTED_FROM)
    return _evenly(1, border - 1, count), _evenly(border, TRACE_DAYS - 2, count)


def day(number: int, seed: int) -> Loaded:
    """One day of the trace."""
    return load(
        {
            "seed": seed,
            "duration_s": DAY_S / SPEED,
            "interval_s": INTERVAL_S,
            "mode": "intervals",
            "kinds": {"gpu": {"start_s": 60, "price_per_hour": 2.0, "emulated": True}},
            "fleet": [{"kind": "gpu", "zones": 2, "racks": 2}],
            "services": [_service(number)],
            "works": [
                {"name": "tune", "kind": "finetune", "copies": 4, "min_milli": 200, "unit_ms": 5},
                *(_warmup(at) for at in range(4)),
            ],
        }
    )


def _service(number: int) -> dict[str, Any]:
    return {
        "name": "home",
        "replicas": 4,
        "min_milli": 300,
        "slo_ms": 12,
        "overhead_ms": 1.5,
        "max_batch_rows": 32,
        "profiles": {"gpu": PROFILE | {"emulated": True}},
        "demand": {
            "trace": str(located(TRACE)),
            "skip_s": number * DAY_S,
            "speed": SPEED,
            "peak_per_s": PEAK_PER_S,
        },
    }


def _warmup(at: int) -> dict[str, Any]:
    """A new release is warmed four times a day."""
    begins_s = (at + 0.3) * DAY_S / SPEED / 4
    return {
        "name": f"warm-{at}",
        "kind": "warmup",
        "copies": 4,
        "min_milli": 100,
        "unit_ms": 5,
        "units": 20_000,
        "arrive_s": begins_s,
    }


def _evenly(first: int, last: int, count: int) -> list[int]:
    return [first + round(at * (last - first) / max(1, count - 1)) for at in range(count)]
