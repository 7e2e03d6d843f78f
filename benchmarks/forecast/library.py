"""The same forecasts by statsforecast: MSTL over AutoETS where there are seasons, AutoETS where there are none.

Fitted anew at every origin to the past up to it, which is what the library is made for and takes it a fraction of a
second each; so it is asked at fewer origins than the others.
"""

from __future__ import annotations

import os
import warnings
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from multiprocessing import get_context

import numpy as np

from benchmarks.forecast.arms import QUANTILES, Told, steps
from benchmarks.forecast.series import Series
from configs.errors import ConfigError
from pool.traces import CountTrace

try:
    from statsforecast.models import MSTL, AutoETS  # pyright: ignore[reportMissingImports] - an extra, `bench`
except ImportError as error:
    raise ConfigError("statsforecast is not installed; run: pip install -c constraints.txt -e '.[bench]'") from error

LEVELS = [round(200 * quantile - 100) for quantile in QUANTILES]
"""Its two-sided intervals, in percent, whose upper ends are the quantiles."""


@dataclass(frozen=True)
class Task:
    """One fit: the past it may see, [N], its seasons in steps, and the furthest lead."""

    past: np.ndarray
    seasons: tuple[int, ...]
    furthest: int


def model_name(series: Series) -> str:
    return "MSTL(AutoETS)" if series.library_seasons_s else "AutoETS"


def library(series: Series, trace: CountTrace, origins: np.ndarray) -> Told:
    """Told by the library's model for the series at each origin."""
    leads = steps(series, trace)
    seasons = tuple(round(season_s / trace.step_s) for season_s in series.library_seasons_s)
    kept = round(series.library_days * 86_400 / trace.step_s)
    tasks = [Task(trace.counts[max(0, n + 1 - kept) : n + 1], seasons, int(leads.max())) for n in origins.tolist()]
    workers = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
        told = list(pool.map(fitted, tasks, chunksize=max(1, len(tasks) // (8 * workers))))
    return Told(np.maximum(np.stack(told)[:, leads - 1], 0.0))


def fitted(task: Task) -> np.ndarray:
    """Forecasts of the next steps, float64 [furthest, 1 + Q]."""
    plain = AutoETS(season_length=1, model="ZZN")
    model = MSTL(season_length=list(task.seasons), trend_forecaster=plain) if task.seasons else plain
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of constant stretches, once a fit
        told = model.forecast(y=task.past, h=task.furthest, level=LEVELS)
    return np.column_stack([told["mean"], *(told[f"hi-{level}"] for level in LEVELS)])
