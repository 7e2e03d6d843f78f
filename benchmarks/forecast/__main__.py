"""How far off demand forecasts are, by lead: beside the last value, the last season and a kept library's model.

Everything is reported on the last 30% of the traces. What could be chosen was chosen on the 70% before: with TUNE=1
the same figures are of the trace's part from 40% to 70%, and the rest is not read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks.forecast.arms import Told, came, is_tuning, last_value, origins_of, recpool, seasonal_naive
from benchmarks.forecast.figures import figures_of, floors
from benchmarks.forecast.library import library, model_name
from benchmarks.forecast.series import SERIES, Series
from benchmarks.report import is_quick, print_report, print_table
from configs.errors import RecpoolError
from pool.traces import CountTrace

LIBRARY_ORIGINS, QUICK_LIBRARY_ORIGINS = 300, 24
"""At most so many of a trace's."""
TIMES = ("observe_us", "forecast_us")


def main() -> None:
    found: dict[str, list[dict[str, Any]]] = {}
    by_library: dict[str, Any] = {}
    costs: dict[str, dict[str, float | None]] = {}
    for series in SERIES:
        trace = series.read()
        print(f"\n{series.name}: {len(trace.counts)} steps of {trace.step_s:g} s", *trace.repairs, sep="; ")
        origins = origins_of(series, trace)
        arms = plain_arms(series, trace, origins)
        found[series.name] = figures_of(series, arms, came(series, trace, origins), span_s(trace, origins))
        costs[series.name] = {name: getattr(arms["recpool"], name) for name in TIMES}
        show(f"{len(origins)} origins", found[series.name])
        by_library[series.name] = beside_library(series, trace, origins, arms)
    print("\nmicroseconds of one call:", costs)
    print_report(
        "forecast",
        {
            "traces": found,
            "beside_library": by_library,
            "costs": costs,
            "part": "tuning" if is_tuning() else "last 30%",
        },
        floors(found, {series.name: series for series in SERIES}),
    )


def plain_arms(series: Series, trace: CountTrace, origins: np.ndarray) -> dict[str, Told]:
    """Those that cost little, at every origin."""
    arms = {"recpool": recpool(series, trace, origins), "last_value": last_value(series, trace, origins)}
    seasonal = seasonal_naive(series, trace, origins)
    return arms if seasonal is None else arms | {"seasonal_naive": seasonal}


def beside_library(series: Series, trace: CountTrace, origins: np.ndarray, arms: dict[str, Told]) -> dict[str, Any]:
    """All arms and the library's model, at the origins that it was asked at."""
    most = QUICK_LIBRARY_ORIGINS if is_quick() else LIBRARY_ORIGINS
    chosen = np.unique(np.linspace(0, len(origins) - 1, min(most, len(origins))).round().astype(np.int64))
    same = {name: Told(told.rates[chosen]) for name, told in arms.items()}
    same["library"] = library(series, trace, origins[chosen])
    rows = figures_of(series, same, came(series, trace, origins[chosen]), span_s(trace, origins))
    show(f"{len(chosen)} origins beside statsforecast's {model_name(series)}", rows)
    return {"model": model_name(series), "origins": len(chosen), "leads": rows}


def span_s(trace: CountTrace, origins: np.ndarray) -> float:
    return float(origins[-1] - origins[0]) * trace.step_s


def show(title: str, rows: list[dict[str, Any]]) -> None:
    print(f"\n{title}")
    print_table(list(rows[0]), [list(row.values()) for row in rows])


if __name__ == "__main__":
    try:
        main()
    except RecpoolError as error:
        raise SystemExit(f"error: {error.message}") from error
