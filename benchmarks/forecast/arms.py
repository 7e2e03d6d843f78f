"""Forecasts of each arm for the same origins: the steps after which a forecast is made."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass

import numpy as np

from benchmarks.forecast.series import Series
from benchmarks.report import is_quick
from benchmarks.traces import REPORTED_FROM
from pool.policy.forecast.forecaster import Forecaster
from pool.traces import CountTrace

QUANTILES = (0.9, 0.99)
"""Upper ones, which capacity is provided for."""
QUICK_ORIGINS = 1_000
"""At most about so many in a quick run."""
TUNED_FROM = 0.4
"""Of a trace: from here to what is reported the choices were made."""


@dataclass(frozen=True)
class Told:
    """What one arm told.

    Attributes:
        rates: float64 [O, L, 1 + Q] by origin and lead: the middle and the quantiles; [O, L, 1] from an arm without.
        history_share: mean share of the belief in history by lead, [L]; None from arms without one.
        observe_us, forecast_us: median microseconds of one call.
    """

    rates: np.ndarray
    history_share: np.ndarray | None = None
    observe_us: float | None = None
    forecast_us: float | None = None


def steps(series: Series, trace: CountTrace) -> np.ndarray:
    """Leads in steps, [L] int64."""
    return np.round(np.array(series.leads_s) / trace.step_s).astype(np.int64)


def origins_of(series: Series, trace: CountTrace) -> np.ndarray:
    """Steps after which forecasts are made, whose outcomes are within the reported part; rising, [O] int64."""
    size = len(trace.counts)
    first, end = (TUNED_FROM, REPORTED_FROM) if is_tuning() else (REPORTED_FROM, 1.0)
    origins = np.arange(int(size * first) - 1, int(size * end) - int(steps(series, trace).max()))
    return origins[:: max(1, round(len(origins) / QUICK_ORIGINS))] if is_quick() else origins


def is_tuning() -> bool:
    return os.environ.get("TUNE", "") not in ("", "0")


def recpool(series: Series, trace: CountTrace, origins: np.ndarray) -> Told:
    """Fed the trace from its beginning, asked at every origin."""
    forecaster, wanted = Forecaster(series.settings), set(origins.tolist())
    rates, shares, observe_s, forecast_s = [], [], [], []
    times_s = trace.times_s.tolist()
    for place, count in enumerate(trace.counts[: int(origins[-1]) + 1].tolist()):
        began_s = time.perf_counter()
        forecaster.observe(times_s[place], count)
        observe_s.append(time.perf_counter() - began_s)
        if place in wanted:
            began_s = time.perf_counter()
            told = [forecaster.forecast(lead_s, QUANTILES) for lead_s in series.leads_s]
            forecast_s.append((time.perf_counter() - began_s) / len(told))
            rates.append([(each.point, *each.rates) for each in told])
            shares.append([each.history_share for each in told])
    mean_share = np.array(shares).mean(axis=0)
    return Told(np.array(rates), mean_share, 1e6 * float(np.median(observe_s)), 1e6 * float(np.median(forecast_s)))


def last_value(series: Series, trace: CountTrace, origins: np.ndarray) -> Told:
    return Told(np.repeat(trace.counts[origins][:, None, None], len(series.leads_s), axis=1))


def seasonal_naive(series: Series, trace: CountTrace, origins: np.ndarray) -> Told | None:
    """As at the same place of the last season; None for a trace without one."""
    if series.season_s is None:
        return None
    then = origins[:, None] + steps(series, trace)[None, :] - round(series.season_s / trace.step_s)
    return Told(trace.counts[then][:, :, None])


def came(series: Series, trace: CountTrace, origins: np.ndarray) -> np.ndarray:
    """What came, float64 [O, L]."""
    return trace.counts[origins[:, None] + steps(series, trace)[None, :]]
