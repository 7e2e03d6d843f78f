"""How good forecasts were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.forecast.arms import QUANTILES, Told
from benchmarks.forecast.series import Series
from benchmarks.report import Floor

HALF_HOUR_S = 1_800
WORST_TO_LAST, MOST_POINTS_OFF = 1.02, 5.0
ENOUGH = 50
"""Outcomes that do not overlap, for a coverage to have a floor: the standard error of 0.9 is then 4 points at most."""


def wape(told: np.ndarray, came: np.ndarray) -> np.ndarray:
    """Weighted absolute percentage error by lead, [L]: absolute errors over what came.

    Args:
        told, came: [O, L].
    """
    return np.abs(told - came).sum(axis=0) / came.sum(axis=0)


def coverage(told: np.ndarray, came: np.ndarray) -> np.ndarray:
    """Share of outcomes at or below an upper quantile by lead, [L]."""
    return (came <= told).mean(axis=0)


def figures_of(series: Series, arms: Mapping[str, Told], came: np.ndarray, span_s: float) -> list[dict[str, Any]]:
    """WAPE of every arm, and for those that tell quantiles their coverage and what the 0.9 one provides.

    Args:
        span_s: from the first origin to the last; over the lead it is the number of outcomes that do not overlap.
    Returns:
        One mapping for each lead.
    """
    rows: list[dict[str, Any]] = [{"lead_s": lead_s, "apart": int(span_s / lead_s)} for lead_s in series.leads_s]
    for name, told in arms.items():
        _fill(rows, f"{name}_wape", wape(told.rates[:, :, 0], came))
        for place, quantile in enumerate(QUANTILES[: told.rates.shape[2] - 1], start=1):
            _fill(rows, f"{name}_within_q{quantile * 100:g}", coverage(told.rates[:, :, place], came))
        if told.rates.shape[2] > 1:
            _fill(rows, f"{name}_q90_over_mean", told.rates[:, :, 1].mean(axis=0) / came.mean(axis=0))
        if told.history_share is not None:
            _fill(rows, "history_share", told.history_share)
    return rows


def floors(found: Mapping[str, list[dict[str, Any]]], series: Mapping[str, Series]) -> list[Floor]:
    """The worst lead of every claim, over all traces.

    Args:
        found: rows by trace, as `figures_of` gives them.
    """
    every = [row for rows in found.values() for row in rows]
    seasonal = [row for name, rows in found.items() if series[name].is_seasonal for row in rows]
    to_last = max(row["recpool_wape"] / row["last_value_wape"] for row in every)
    late = [row for row in seasonal if row["lead_s"] >= HALF_HOUR_S]
    to_both = max(row["recpool_wape"] / min(row["last_value_wape"], row["seasonal_naive_wape"]) for row in late)
    off = max(100 * abs(row["recpool_within_q90"] - 0.9) for row in every if row["apart"] >= ENOUGH)
    return [
        Floor("worst_wape_to_last_value", to_last, WORST_TO_LAST, "lower"),
        Floor("taxi_wape_to_best_naive_from_30_min", to_both, 1.0, "lower"),
        Floor("q90_coverage_points_off", off, MOST_POINTS_OFF, "lower"),
    ]


def _fill(rows: list[dict[str, Any]], name: str, values: np.ndarray) -> None:
    for row, value in zip(rows, values.tolist(), strict=True):
        row[name] = value
