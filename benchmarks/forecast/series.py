"""The traces that demand is forecast on, and at which leads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from benchmarks.traces import located
from configs.forecast_settings import ForecastSettings
from pool.traces import CountTrace, binned, read_arrivals, read_counts

ARRIVALS_STEP_S = 5.0
"""About 28 requests fall into one step of the arrivals."""


@dataclass(frozen=True)
class Series:
    """One trace.

    Attributes:
        season_s: whose last value the seasonal-naive forecast repeats; None where the trace is too short for any.
        library_seasons_s: that the library's model is told of.
        library_days: of the past that it is fitted to, or the whole past where that is shorter.
        is_seasonal: history is expected to pay from 30 minutes on.
    """

    name: str
    read: Callable[[], CountTrace]
    settings: ForecastSettings
    leads_s: tuple[float, ...]
    season_s: float | None = None
    library_seasons_s: tuple[float, ...] = ()
    library_days: float = 42.0
    is_seasonal: bool = False


DAY_S, WEEK_S = 86_400.0, 7 * 86_400.0
TAXI = Series(
    "taxi",
    lambda: read_counts(located("nyc_taxi.csv")),
    ForecastSettings(step_s=1_800, slot_s=1_800, history_days=180, max_lead_s=7_200),
    (1_800, 3_600, 7_200),
    season_s=WEEK_S,
    library_seasons_s=(DAY_S, WEEK_S),
    is_seasonal=True,
)
BALANCER = Series(
    "load balancer",
    lambda: read_counts(located("elb_request_count.csv")),
    ForecastSettings(step_s=300, slot_s=300, history_days=35, max_lead_s=3_600),
    (300, 600, 1_800, 3_600),
    season_s=DAY_S,
    library_seasons_s=(DAY_S,),
)
ARRIVALS = Series(
    "language model",
    lambda: arrivals(located("azure_llm_conv.csv")),
    ForecastSettings(step_s=ARRIVALS_STEP_S, slot_s=300, history_days=1, max_lead_s=600),
    (5, 15, 60, 300, 600),
)
SERIES = (TAXI, BALANCER, ARRIVALS)


def arrivals(file: Path) -> CountTrace:
    """Single requests as counts by step."""
    times_s, repairs = read_arrivals(file)
    trace = binned(times_s, ARRIVALS_STEP_S)
    return CountTrace(trace.start_s, trace.step_s, trace.counts, repairs)
