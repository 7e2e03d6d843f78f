"""A spike against the real service: are replicas ready before it comes, with a forecast that knows of it and without.

One gateway serves. Traffic is low, and jumps at a moment that the past has seen again and again. First the autoscaler
knows nothing of the past; then it is given a past of its own kind and starts again. The load comes from a process of
its own, on the same machine.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import orjson
import ray

from benchmarks.live import Live, live_service
from benchmarks.live_pool import await_truth, connected
from benchmarks.load import Load, Outcomes, start
from benchmarks.report import Floor, is_quick, print_report, print_table
from configs.forecast_settings import ForecastSettings
from deployments.autoscaling import AUTOSCALER, GATEWAY
from deployments.pool_client import NAMESPACE
from features.files import write_atomically
from pool.policy.forecast.forecaster import Forecaster

PROFILE = "elastic"
FORECAST = ForecastSettings(step_s=10, slot_s=30, history_days=2, max_lead_s=600)
PERIOD_S = 600.0
"""Between two spikes of the past; a day has a whole number of them."""
CALM_PER_S, SPIKE_PER_S = 10.0, 90.0
CALM_S, SPIKE_S = 60.0, 40.0
AFTER_S = 20.0
KNOWN, UNKNOWN = "with a forecast", "without a past"
SLO_S = 0.1
POLL_S = 0.5
DAYS, QUICK_DAYS = 2.0, 1.0


@dataclass(frozen=True)
class Arm:
    """One spike.

    Attributes:
        ready_s: when the second replica served, after the beginning of the spike; negative: before it; None: never.
        late_share: of the spike's requests, answered after the objective, refused or not at all.
    """

    name: str
    ready_s: float | None
    late_share: float
    p99_ms: float
    requests: int


def main() -> None:
    environment = {
        "RECPOOL_FORECAST": orjson.dumps(FORECAST.model_dump()).decode(),
        "RECPOOL_AUTOSCALE__DOWN_AFTER_S": "20",
        "RECPOOL_AUTOSCALE__PANIC_S": "20",
        "RECPOOL_AUTOSCALE__DEPLOYMENTS__GATEWAY__MAX_REPLICAS": "2",
    }
    with live_service(PROFILE, **environment) as live:
        arms = [spike(live, UNKNOWN, time.time() + CALM_S)]
        await_truth(lambda: gateways(live) == 1, "the second replica leaves")
        with learnt(live) as begins_s:
            arms.append(spike(live, KNOWN, begins_s))
    show(arms)


def spike(live: Live, name: str, begins_s: float) -> Arm:
    """Low traffic up to a moment (seconds since 1970), then the spike."""
    lead_s = begins_s - time.time()
    times_s = np.concatenate([_arrivals(CALM_PER_S, 0, lead_s), _arrivals(SPIKE_PER_S, lead_s, SPIKE_S)])
    load = Load(live.port, live.requests(2_000), times_s, contains=b'"degraded":[]')
    with start(load) as running, watching(live) as seen:
        spike_at_s = running.started_s + lead_s
        outcomes = running.outcomes()
        time.sleep(AFTER_S)
    ready_s = next((at_s - spike_at_s for at_s, count in seen if count > 1), None)
    return arm_of(name, outcomes.select(outcomes.scheduled_s >= lead_s), ready_s)


def arm_of(name: str, spiked: Outcomes, ready_s: float | None) -> Arm:
    in_time = (spiked.status == 200) & (spiked.latency_s <= SLO_S) & spiked.found
    p99_ms = float(np.nanquantile(spiked.latency_s, 0.99) * 1_000)
    return Arm(name, ready_s, float(1 - in_time.mean()), p99_ms, len(spiked.status))


@contextmanager
def watching(live: Live) -> Iterator[list[tuple[float, int]]]:
    """(monotonic seconds, gateways that serve), again and again while the block runs."""
    seen: list[tuple[float, int]] = []
    ended = threading.Event()

    def watch() -> None:
        while not ended.wait(POLL_S):
            seen.append((time.monotonic(), gateways(live)))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield seen
    finally:
        ended.set()
        thread.join()


def gateways(live: Live) -> int:
    return len(live.running().get(GATEWAY, ()))


@contextmanager
def learnt(live: Live) -> Iterator[float]:
    """Give the autoscaler a past and let it start again; yields when the next spike is due (seconds since 1970)."""
    days = QUICK_DAYS if is_quick() else DAYS
    begins_s = time.time() + 90 + 60 * days  # what the past and the start take
    write_atomically(live.home / "run" / "autoscale" / f"{GATEWAY}.json", orjson.dumps(past(begins_s, days)))
    with connected(live) as there:
        there.submit(_restart).result()
    if (left_s := begins_s - time.time()) < 2 * POLL_S + 30:
        raise TimeoutError(f"only {left_s:.0f} s are left before the spike; the machine is too busy for this benchmark")
    yield begins_s


def past(begins_s: float, days: float) -> dict[str, Any]:
    """What a forecaster learns from spikes, the next of which begins at ``begins_s``; up to now."""
    forecaster, rng = Forecaster(FORECAST), np.random.default_rng(3)
    now_s = time.time()
    for at_s in np.arange(now_s - days * 86_400, now_s, FORECAST.step_s).tolist():
        spikes = (at_s - begins_s) % PERIOD_S < SPIKE_S
        rate = SPIKE_PER_S if spikes else CALM_PER_S
        forecaster.observe(at_s, rng.poisson(rate * FORECAST.step_s) / FORECAST.step_s)
    return forecaster.plain()


def show(arms: list[Arm]) -> None:
    columns = list(asdict(arms[0]))
    print_table(columns, [[asdict(arm)[column] for column in columns] for arm in arms])
    print()
    unknown, known = arms
    never = SPIKE_S + AFTER_S
    floors = [
        Floor(
            "ready before the spike with a forecast, s",
            known.ready_s if known.ready_s is not None else never,
            0.0,
            "lower",
        ),
        Floor("ready after it without, s", unknown.ready_s if unknown.ready_s is not None else never, 0.0),
        Floor("late share with over without", known.late_share / max(unknown.late_share, 1e-9), 1.0, "lower"),
    ]
    print_report("spike", {arm.name: asdict(arm) for arm in arms}, floors)


def _arrivals(per_s: float, from_s: float, seconds: float) -> np.ndarray:
    rng = np.random.default_rng(int(per_s))
    return np.sort(from_s + rng.random(rng.poisson(per_s * seconds)) * seconds)


def _restart() -> None:
    ray.kill(ray.get_actor(AUTOSCALER, namespace=NAMESPACE), no_restart=False)


if __name__ == "__main__":
    main()
