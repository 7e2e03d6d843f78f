"""Demand ahead: quantiles of the rate at any lead from a step to hours, learnt while it runs.

Simple experts (`experts.py`) say what comes; a linear rule of them (`regression.py`) is one more; a blend
(`blend.py`), learnt for each lead from past errors, weighs them; past errors of the blend give the quantiles
(`spread.py`). A series without structure keeps its blend at the recent level, because nothing else earns a weight.

No clock and no chance: the same observations give the same forecasts, live, in tests and in simulation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from configs.forecast_settings import ForecastSettings
from pool.policy.forecast.blend import Blend
from pool.policy.forecast.experts import EXPERTS, HALF_LIVES, HISTORIC, Present, foretell
from pool.policy.forecast.history import SlotHistory
from pool.policy.forecast.regression import Regression
from pool.policy.forecast.spread import Spread

RECENT = 24
"""Steps that are remembered one by one."""
PER_LEAD = 8
"""Forecasts under way at a lead, at most twice as many: a lead of an hour is not checked anew every second."""
USUAL = 0.999
"""Fading of the mean rate that gives the scale."""
FORMAT = 1


@dataclass(frozen=True)
class Forecast:
    """Of the mean rate of the step that begins ``lead_s`` after the latest observed one.

    Attributes:
        rates: at the asked quantiles, in their order, [Q]; never falling with the quantile, never negative.
        point: what the blend says, by which absolute errors are least. The quantile 0.5 adds what past forecasts
            were off by on the whole, which is right for the spread but jumpy where few are known.
        history_share: of the belief, 0..1, that is in past days and weeks; the rest is in the recent level.
        checked: past forecasts at this lead whose outcome is known; few mean that the quantiles are guesses.
    """

    lead_s: float
    rates: tuple[float, ...]
    point: float
    history_share: float
    checked: int


class Forecaster:
    """Forecasts one rate. Feed it each step once; ask it at any time.

    State is a few hundred kilobytes at most, by `ForecastSettings.history_days`, and can be kept as plain data.
    """

    def __init__(self, settings: ForecastSettings):
        self.settings = settings
        self.leads = _grid(settings)
        self.strides = np.maximum(1, self.leads // PER_LEAD)
        self.history = SlotHistory((settings.history_days + 1) * settings.slots_of_day)
        overlap = self.leads / self.strides
        self.blend = Blend(overlap, len(EXPERTS) + 1)
        self.regression = Regression(overlap, len(EXPERTS))
        self.spread = Spread(len(self.leads), settings.errors_kept)
        self.step = -1
        self.seen = 0
        self.late = 0
        self.usual = 0.0
        self.levels = np.zeros(len(HALF_LIVES))
        self.recent: list[float] = []
        self.due = np.full((len(self.leads), 2 * PER_LEAD), -1, np.int64)
        self.told = np.zeros((len(self.leads), 2 * PER_LEAD, len(EXPERTS) + 2))

    def observe(self, time_s: float, rate: float) -> None:
        """Take the mean rate of the step that ``time_s`` lies in.

        Steps left out are unknown, not zero. A second observation of the latest step is averaged into what is known of
        it; one of an earlier step comes too late, changes nothing and is counted in `late`.

        Args:
            time_s: seconds since 1970 UTC; seasons follow from it.
            rate: in any unit, 0 or more.
        Raises:
            ValueError: one of them is negative or not a finite number.
        """
        if not (0 <= time_s < math.inf and 0 <= rate < math.inf):
            raise ValueError(f"rate {rate} at {time_s} s: both must be a finite number of at least 0")
        step = int(time_s // self.settings.step_s)
        if step < self.step:
            self.late += 1
        elif step == self.step:
            self._again(rate)
        else:
            self._next(step, rate)

    def forecast(self, lead_s: float, quantiles: Sequence[float] = (0.5, 0.9)) -> Forecast:
        """What comes ``lead_s`` after the latest observation. Changes nothing.

        Args:
            lead_s: from 0 on; less than a step is told like a step.
            quantiles: each between 0 and 1.
        Raises:
            ValueError: nothing was observed yet, the lead is beyond `max_lead_s`, or a quantile is outside 0..1.
        """
        return self.forecasts((lead_s,), quantiles)[0]

    def forecasts(self, leads_s: Sequence[float], quantiles: Sequence[float] = (0.5, 0.9)) -> tuple[Forecast, ...]:
        """`forecast` for several leads; the past is looked at once for all of them."""
        if self.step < 0:
            raise ValueError("nothing was observed yet: there is nothing to forecast from")
        for lead_s in leads_s:
            if not 0 <= lead_s <= self.settings.max_lead_s:
                raise ValueError(f"lead_s {lead_s}: must be within 0..{self.settings.max_lead_s:g} (max_lead_s)")
        if not all(0 < quantile < 1 for quantile in quantiles):
            raise ValueError(f"quantiles {tuple(quantiles)}: each must be above 0 and below 1")
        ahead = np.maximum(1.0, np.array(leads_s) / self.settings.step_s)
        told = foretell(self._present(), self.history, self.settings.slots_of_day, ahead)
        return tuple(
            self._forecast(lead_s, float(steps), row, quantiles)
            for lead_s, steps, row in zip(leads_s, ahead, told, strict=True)
        )

    def plain(self) -> dict[str, Any]:
        """All that is known, as numbers, lists and dictionaries; see `restored`."""
        return {
            "format": FORMAT,
            "settings": self.settings.model_dump(),
            "history": self.history.plain(),
            "blend": self.blend.plain(),
            "regression": self.regression.plain(),
            "spread": self.spread.plain(),
            "counts": [self.step, self.seen, self.late],
            "usual": self.usual,
            "levels": self.levels.tolist(),
            "recent": list(self.recent),
            "due": self.due.tolist(),
            "told": [[[None if math.isnan(x) else x for x in one] for one in row] for row in self.told.tolist()],
        }

    @classmethod
    def restored(cls, plain: dict[str, Any]) -> Forecaster:
        """One that goes on as the one that was saved would have.

        Raises:
            ValueError: it was saved in another format.
        """
        if plain.get("format") != FORMAT:
            raise ValueError(f"a forecast saved in format {plain.get('format')!r} cannot be read; this is {FORMAT}")
        made = cls(ForecastSettings.model_validate(plain["settings"]))
        made.history = SlotHistory.restored(plain["history"])
        made.blend = Blend.restored(plain["blend"])
        made.regression = Regression.restored(plain["regression"])
        made.spread = Spread.restored(plain["spread"])
        made.step, made.seen, made.late = plain["counts"]
        made.usual, made.levels = plain["usual"], np.array(plain["levels"], np.float64)
        made.recent = list(plain["recent"])
        made.due = np.array(plain["due"], np.int64)
        made.told = np.array(plain["told"], np.float64)
        return made

    def _forecast(self, lead_s: float, steps: float, told: np.ndarray, quantiles: Sequence[float]) -> Forecast:
        """From what every expert tells, [E], of the step so many steps ahead."""
        rows, shares = self._neighbours(steps)
        _, points, weights = self._blended(rows, np.repeat(told[None, :], len(rows), axis=0))
        point = float(shares @ points)
        historic = weights[:, :-1] @ HISTORIC + weights[:, -1] * self.regression.share(rows, HISTORIC)
        rates = self._quantiles(rows, shares, point, quantiles)
        return Forecast(lead_s, rates, point, float(shares @ historic), int(self.spread.count[rows].min()))

    def _next(self, step: int, rate: float) -> None:
        passed = step - self.step if self.step >= 0 else 1
        fresh = 1 - 0.5 ** (passed / np.array(HALF_LIVES)) if self.seen else 1.0
        self.levels = self.levels + fresh * (rate - self.levels)
        self.usual += (rate - self.usual) * max(1 - USUAL, 1 / (self.seen + 1))
        self.recent = [*self.recent[-RECENT + 1 :], rate]
        self.step, self.seen = step, self.seen + 1
        self.history.add(int(step * self.settings.step_s // self.settings.slot_s), rate)
        self._check(rate)
        self._commit()

    def _again(self, rate: float) -> None:
        """What was learnt from the step stays; only what it was is told more exactly."""
        self.recent[-1] = (self.recent[-1] + rate) / 2
        self.history.add(self.history.latest, rate)

    def _present(self) -> Present:
        size = self.settings.step_s / self.settings.slot_s
        recent = np.array(self.recent)
        return Present((self.step + 0.5) * size - 0.5, size, self.recent[-1], self.levels, recent)

    def _check(self, rate: float) -> None:
        """Learn from forecasts that were made for this step."""
        rows, places = np.nonzero(self.due == self.step)
        if not len(rows):
            return
        told, came = self.told[rows, places], np.full(len(rows), rate)
        self.blend.learn(rows, told[:, :-1], came)
        self.regression.learn(rows, told[:, :-2], came, max(self.usual, 1e-9))
        self.spread.learn(rows, told[:, -1], came)

    def _commit(self) -> None:
        """Write down what every expert says now, to be checked when its time comes."""
        rows = np.flatnonzero(self.step % self.strides == 0)
        leads = self.leads[rows]
        told = foretell(self._present(), self.history, self.settings.slots_of_day, leads.astype(np.float64))
        told, points, _ = self._blended(rows, told)
        places = self.step // self.strides[rows] % self.due.shape[1]
        self.due[rows, places] = self.step + leads
        self.told[rows, places, :-1] = told
        self.told[rows, places, -1] = points

    def _blended(self, rows: np.ndarray, told: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The experts' forecasts and the regression's [D, E + 1], the blend's [D], and its weights [D, E + 1]."""
        told = np.column_stack([told, self.regression.foretell(rows, told)])
        known = np.isfinite(told)
        weights = self.blend.weights(rows, known)
        return told, (weights * np.where(known, told, 0.0)).sum(axis=1), weights

    def _neighbours(self, ahead: float) -> tuple[np.ndarray, np.ndarray]:
        """The grid's leads around one, and how much each counts."""
        above = min(int(np.searchsorted(self.leads, ahead)), len(self.leads) - 1)
        if above == 0 or self.leads[above] <= ahead:
            return np.array([above]), np.ones(1)
        low, high = self.leads[above - 1], self.leads[above]
        share = math.log(ahead / low) / math.log(high / low)
        return np.array([above - 1, above]), np.array([1 - share, share])

    def _quantiles(
        self, rows: np.ndarray, shares: np.ndarray, point: float, quantiles: Sequence[float]
    ) -> tuple[float, ...]:
        """Past errors around the point; while there are none, twice and no demand are both thought possible."""
        off = np.zeros(len(quantiles))
        for row, share in zip(rows, shares, strict=True):
            errors = self.spread.errors(int(row), point, quantiles)
            off += share * (point * (2 * np.array(quantiles) - 1) if errors is None else errors)
        rates = np.maximum(point + off, 0.0)
        rank = np.argsort(quantiles, kind="stable")
        rates[rank] = np.maximum.accumulate(rates[rank])
        return tuple(rates.tolist())


def _grid(settings: ForecastSettings) -> np.ndarray:
    """Leads in steps that are learnt: 1, 2, 4, ... and the furthest; in between they are interpolated."""
    last = max(1, math.ceil(settings.max_lead_s / settings.step_s))
    doubled = 2 ** np.arange(0, math.ceil(math.log2(last)) if last > 1 else 0)
    return np.unique(np.append(doubled, last)).astype(np.int64)
