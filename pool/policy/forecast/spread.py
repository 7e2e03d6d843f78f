"""How far off forecasts were: quantiles from past errors, by lead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

LEAST_ERRORS = 8
"""Below so many errors nothing is known of their spread."""


class Spread:
    """The latest errors at each lead: what was told and what came, float64 [leads, kept].

    A quantile is the told rate plus the quantile of past errors, which are compared in units of ``told ** power``; the
    power is read from the errors: 0 where they do not grow with demand, 1/2 for independent callers (Poisson), 1 where
    demand swings as a whole. Source: split conformal prediction (Lei et al., JASA 2018) on a sliding window, for the
    scale Taylor's power law.
    """

    def __init__(self, leads: int, kept: int):
        self.told = np.full((leads, kept), np.nan)
        self.came = np.full((leads, kept), np.nan)
        self.count = np.zeros(leads, np.int64)

    def learn(self, rows: np.ndarray, told: np.ndarray, came: np.ndarray) -> None:
        places = self.count[rows] % self.told.shape[1]
        self.told[rows, places], self.came[rows, places] = told, came
        self.count[rows] += 1

    def errors(self, row: int, told: float, quantiles: Sequence[float]) -> np.ndarray | None:
        """Quantiles of what comes minus what is told, [Q]; None while too little is known."""
        count = min(int(self.count[row]), self.told.shape[1])
        if count < LEAST_ERRORS:
            return None
        before, came = self.told[row, :count], self.came[row, :count]
        floor = max(1e-3 * float(came.mean()), 1e-9)
        before = np.maximum(before, floor)
        power = _power(before, np.abs(came - before))
        levels = [_level(quantile, count) for quantile in quantiles]
        return np.quantile((came - before) / before**power, levels) * max(told, floor) ** power

    def plain(self) -> dict[str, Any]:
        count = np.minimum(self.count, self.told.shape[1])
        kept = [(self.told[row, :n].tolist(), self.came[row, :n].tolist()) for row, n in enumerate(count)]
        return {"kept": self.told.shape[1], "errors": kept, "count": self.count.tolist()}

    @classmethod
    def restored(cls, plain: dict[str, Any]) -> Spread:
        spread = cls(len(plain["count"]), plain["kept"])
        for row, (told, came) in enumerate(plain["errors"]):
            spread.told[row, : len(told)], spread.came[row, : len(came)] = told, came
        spread.count = np.array(plain["count"], np.int64)
        return spread


def _level(quantile: float, count: int) -> float:
    """The quantile among so few that a new one lies below with the asked probability."""
    return min(1.0, max(0.0, (quantile * (count + 1) - 1) / (count - 1)))


def _power(told: np.ndarray, missed: np.ndarray) -> float:
    """How errors grow with the rate, within 0..1: mean error of the higher half of rates over that of the lower."""
    high = told > np.median(told)
    low = ~high
    if not high.any() or told[high].mean() < 1.05 * told[low].mean():
        return 1.0  # one level only: it makes no difference
    grown = missed[high].mean() / max(missed[low].mean(), 1e-9)
    return min(1.0, max(0.0, math.log(max(grown, 1e-9)) / math.log(told[high].mean() / told[low].mean())))
