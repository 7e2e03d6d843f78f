"""Demand from the traces: what was before for the forecasts, and stretches that are played, with chance by seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from benchmarks.autoscale.world import Deployment
from benchmarks.forecast.series import arrivals
from benchmarks.report import is_quick
from benchmarks.traces import REPORTED_FROM, located
from configs.forecast_settings import ForecastSettings
from pool.policy.autoscale.signals import ServiceCurve
from pool.traces import CountTrace, read_counts

SWING, SWING_S = 0.05, 120.0
"""Deviation of the made swing of the rate within the steps of a trace, and the time after which it is forgotten.
Counts of half-hours are smooth; callers are not."""
TUNED_FROM = 0.4
WARM_STEPS = 1_440
"""Intervals before a stretch that the forecasts see one by one, so that short leads are learnt too."""
DAY_S, WEEK_S = 86_400.0, 7 * 86_400.0


@dataclass(frozen=True)
class Case:
    """A trace as the demand of a deployment.

    Attributes:
        peak_per_s: that the highest count of its first 70% is scaled to.
        interval_s: between two decisions, and the forecast's step.
        start_s: that a replica takes.
        span_s: that is played for one seed; quick_s in a quick run.
        season_s: for the seasonal-naive arm; None where the trace is too short for any.
    """

    name: str
    read: Callable[[], CountTrace]
    peak_per_s: float
    interval_s: float
    start_s: float
    span_s: float
    quick_s: float
    forecast: ForecastSettings
    season_s: float | None = None

    def deployment(self) -> Deployment:
        return Deployment(ServiceCurve(POINTS, self.start_s), SLO_MS, MOST)


SLO_MS, MOST = 100.0, 60
POINTS = ((20.0, 20.0), (50.0, 40.0), (70.0, 70.0), (80.0, 100.0), (90.0, 200.0), (96.0, 500.0))
"""p99 in ms of one replica by its rate: as a gateway of two cores behaves that answers a hundred a second at most."""
CASES = (
    Case(
        "taxi",
        lambda: read_counts(located("nyc_taxi.csv")),
        peak_per_s=1_600.0,
        interval_s=30.0,
        start_s=300.0,
        span_s=WEEK_S,
        quick_s=DAY_S,
        forecast=ForecastSettings(step_s=30, slot_s=1_800, history_days=35, max_lead_s=3_600),
        season_s=WEEK_S,
    ),
    Case(
        "load balancer",
        lambda: read_counts(located("elb_request_count.csv")),
        peak_per_s=1_600.0,
        interval_s=30.0,
        start_s=60.0,
        span_s=2 * DAY_S,
        quick_s=DAY_S / 4,
        forecast=ForecastSettings(step_s=30, slot_s=300, history_days=14, max_lead_s=1_800),
        season_s=DAY_S,
    ),
    Case(
        "language model",
        lambda: arrivals(located("azure_llm_conv.csv")),
        peak_per_s=1_600.0,
        interval_s=5.0,
        start_s=20.0,
        span_s=1_000.0,
        quick_s=1_000.0,
        forecast=ForecastSettings(step_s=5, slot_s=300, history_days=1, max_lead_s=600),
    ),
)


@dataclass(frozen=True)
class Stretch:
    """What one seed plays.

    Attributes:
        start_s: seconds since 1970.
        arrived: requests by interval, [N]; before: those of the intervals before, [W], the latest last.
        past_s, past: times and rates of the steps of the trace before, [P], the latest last.
        season: the rate a season before, by interval, [N + start]; None without one. It reaches on by a start.
        step_s: of the trace.
        peak_per_s: the highest rate of the first 70% of the trace.
    """

    start_s: float
    arrived: np.ndarray
    before: np.ndarray
    past_s: np.ndarray
    past: np.ndarray
    season: np.ndarray | None
    step_s: float
    peak_per_s: float


def stretch(case: Case, trace: CountTrace, seed: int, tuning: bool = False) -> Stretch:
    """A stretch of the last 30%, or for tuning of the 30% before; its beginning and its noise are the seed's."""
    rng, span_s = np.random.default_rng([seed, tuning]), case.quick_s if is_quick() else case.span_s
    size = len(trace.counts)
    first, end = (TUNED_FROM, REPORTED_FROM) if tuning else (REPORTED_FROM, 1.0)
    low = int(size * first)
    high = max(low, int(size * end) - int(np.ceil(span_s / trace.step_s)) - 1)
    place = int(rng.integers(low, high + 1))
    scale = case.peak_per_s / trace.counts[: int(size * REPORTED_FROM)].max()
    rates = trace.counts * scale
    start_s = float(np.ceil(trace.times_s[place] / case.interval_s) * case.interval_s)  # where forecasts' steps begin
    steps = int(min(span_s, trace.times_s[-1] - start_s) / case.interval_s)
    before = min(WARM_STEPS, int((start_s - trace.start_s) / case.interval_s))
    at_s = start_s + (np.arange(-before, steps) + 0.5) * case.interval_s
    swung = between(trace, rates, at_s) * swing(rng, before + steps, case.interval_s)
    arrived = rng.poisson(swung * case.interval_s).astype(np.float64)
    season = None
    if case.season_s is not None:
        ahead = int(case.start_s / case.interval_s) + 1
        later_s = start_s + (np.arange(steps + ahead) + 0.5) * case.interval_s
        season = between(trace, rates, later_s - case.season_s)
    past = (trace.times_s[:place], rates[:place])
    peak_per_s = float(rates[: int(size * REPORTED_FROM)].max())
    return Stretch(start_s, arrived[before:], arrived[:before], *past, season, trace.step_s, peak_per_s)


def between(trace: CountTrace, rates: np.ndarray, at_s: np.ndarray) -> np.ndarray:
    """Rates at any time: those of steps by a straight line from middle to middle."""
    return np.interp(at_s, trace.times_s + trace.step_s / 2, rates)


def swing(rng: np.random.Generator, steps: int, interval_s: float) -> np.ndarray:
    """Factors around 1 that hang together for a while, [N]: exp of an autoregressive process of order one."""
    keep = np.exp(-interval_s / SWING_S)
    shocks = rng.normal(0, SWING * np.sqrt(1 - keep**2), steps)
    value, found = rng.normal(0, SWING), np.empty(steps)
    for place, shock in enumerate(shocks.tolist()):
        value = keep * value + shock
        found[place] = value
    return np.exp(found - SWING**2 / 2)
