"""A replay in the real service, and the same in the simulator."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.calibration.figures import Figures, of_live
from benchmarks.live import Live
from benchmarks.live_pool import LivePool
from benchmarks.load import Load, Outcomes, start
from benchmarks.overload import FULL_QUALITY
from deployments.simulated_door import live_doors
from pool.device import DeviceKind
from pool.policy.latency import LatencyProfile
from pool.profiles import ProfileStore
from pool.runtime.knowledge import WRITE_S
from pool.simulator.demand import Demand
from pool.simulator.reading import load
from pool.simulator.simulation import Simulation

KIND: DeviceKind = "gpu"
STEP_S = 1.0
START_S = 20.0
"""Of a replica; none starts during a replay."""
GATEWAY = "gateway"


class LiveReplays:
    """Sends requests to a running service with a pool.

    Attributes:
        devices: of the pool.
    """

    def __init__(self, live: Live, requests: Sequence[bytes]):
        self._live, self._pool, self._requests = live, LivePool(live), requests
        self.devices = len(self._pool.devices)

    def play(self, times_s: np.ndarray) -> tuple[Outcomes, float]:
        """What came of it, and the device time that guaranteed members took meanwhile, in seconds."""
        before_s = self._metered_s()
        with start(Load(self._live.port, self._requests, times_s, timeout_s=5.0, contains=FULL_QUALITY)) as running:
            outcomes = running.outcomes()
        return outcomes, self._metered_s() - before_s

    def profile(self) -> LatencyProfile:
        """What the service has measured of itself so far, once it has had the time to write that down."""
        time.sleep(WRITE_S + 2 * self._live.settings.pool.runtime.renew_s)
        store = ProfileStore(self._live.home / "pool" / "profiles")
        measured = [key for key in store.keys() if key.kind == KIND]  # noqa: SIM118 - a store is no mapping
        found = store.get(max(measured, key=lambda key: key.version)) if measured else None
        if found is None:
            raise RuntimeError(f"no profile in {store.folder}: too few batches of any size were measured")
        return found

    def _metered_s(self) -> float:
        members = [slot for device in self._pool.devices for slot in self._pool.members(device)]
        return sum(slot.metered_ns for slot in members if slot.priority == "guaranteed") / 1e9


def figures_of(outcomes: Outcomes, busy_s: float, slo_ms: float, devices: int) -> Figures:
    span_s = float(outcomes.scheduled_s[-1] - outcomes.scheduled_s[0])
    return of_live(outcomes, slo_ms, busy_s, span_s * devices)


def simulate(
    live: Live, profile: LatencyProfile, times_s: np.ndarray, slo_ms: float, overhead_ms: float, devices: int
) -> Figures:
    """The same requests at the same times, on as many devices with the measured batch times.

    Args:
        overhead_ms: of an answer outside its batch.
    """
    settings, seconds = live.settings, float(times_s[-1]) + 2.0
    tree = {
        "seed": 1,
        "duration_s": seconds,
        "interval_s": STEP_S,
        "mode": "requests",
        "kinds": {KIND: {"start_s": START_S, "price_per_hour": 1.0, "emulated": True}},
        "fleet": [{"kind": KIND, "zones": 1, "racks": devices}],
        "services": [
            {
                "name": GATEWAY,
                "replicas": devices,
                "min_milli": 500,
                "slo_ms": slo_ms,
                "overhead_ms": overhead_ms,
                "max_wait_ms": settings.overload.max_wait_ms,
                "max_batch_rows": settings.serving.max_batch_rows,
                "profiles": {KIND: profile.model_dump() | {"start_s": START_S}},
                "demand": {"rate_per_s": 1},
            }
        ],
    }
    counts, edges = np.histogram(times_s, bins=np.arange(0, seconds + STEP_S, STEP_S))
    demand = Demand(edges[:-1] + STEP_S / 2, counts / STEP_S, times_s)
    loaded = replace(load(tree), demands={GATEWAY: demand})
    outcome = Simulation(loaded, make_door=live_doors(settings.overload)).run()
    found = outcome.services[GATEWAY]
    assert found.p50_ms is not None and found.p99_ms is not None
    span_part = seconds / float(times_s[-1] - times_s[0])
    return Figures(outcome.serving * span_part, found.p50_ms, found.p99_ms, found.violations / found.asked)
