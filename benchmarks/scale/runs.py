"""One simulated day in a process of its own, so that its memory is its own."""

from __future__ import annotations

import resource
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from typing import Any

import numpy as np

from benchmarks.scale.day import day_of
from pool.simulator.reading import load
from pool.simulator.simulation import Simulation

SETTLED_TICKS = 24


def day(devices: int, seconds: float, interval_s: float) -> dict[str, Any]:
    """Simulate a day with its failures, elsewhere."""
    return _alone(_day, devices, seconds, interval_s)


def ticks(devices: int) -> dict[str, float]:
    """What the planner's tick takes in a pool in which nothing fails, elsewhere."""
    return _alone(_ticks, devices)


def _alone(function: Any, *arguments: Any) -> Any:
    with ProcessPoolExecutor(1, get_context("spawn")) as executor:
        return executor.submit(function, *arguments).result()


def _day(devices: int, seconds: float, interval_s: float) -> dict[str, Any]:
    began_s = time.perf_counter()
    simulation = Simulation(load(day_of(devices, seconds, interval_s)))
    outcome = simulation.run()
    wall_s = time.perf_counter() - began_s
    p99_ms = [each.p99_ms for each in outcome.services.values() if each.p99_ms is not None]
    return {
        "devices": devices,
        "hours": seconds / 3_600,
        "requests": outcome.asked,
        "wall_s": wall_s,
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "times_real": seconds / wall_s,
        "outages": outcome.outages,
        "availability": outcome.availability,
        "violations": outcome.violations / outcome.asked,
        "worst_p99_ms": max(p99_ms),
        "utilisation": outcome.utilisation,
        "steps": outcome.steps,
        "preemptions": outcome.preemptions,
        "leases": len(simulation.world.copies),
        **_quantiles(simulation.tick_s),
    }


def _ticks(devices: int) -> dict[str, float]:
    interval_s = 30.0
    loaded = load(day_of(devices, SETTLED_TICKS * interval_s + 1, interval_s, with_failures=False))
    simulation = Simulation(loaded)
    simulation.run()
    placing_ms = 1e3 * simulation.placing_s[0]
    leases = len(simulation.world.copies)
    return {"devices": devices, "leases": leases, "place_all_ms": placing_ms, **_quantiles(simulation.tick_s)}


def _quantiles(seconds: list[float]) -> dict[str, float]:
    p50, p99 = np.quantile(np.array(seconds) * 1e3, (0.5, 0.99)).tolist()
    return {"tick_p50_ms": p50, "tick_p99_ms": p99}
