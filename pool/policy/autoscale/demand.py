"""Demand as an autoscaler wants it: what comes ahead from the forecast, and what comes now from the last seconds."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from configs.forecast_settings import ForecastSettings
from pool.policy.autoscale.signals import Signals
from pool.policy.forecast.entropy import Usual
from pool.policy.forecast.forecaster import Forecast, Forecaster

ALARM, LEAST_FALL_BITS, LEARNING, READINGS = 5.0, 0.5, 0.02, 10
"""Deviations and bits below the usual from which requests crowd; learning of the usual, and from how many readings on.
The values of `RequestEntropy`; half a bit is its third fewer equally wanted keys."""

SURE = 2.0
"""Standard errors of a count."""


class Demand:
    """Total arrivals of a deployment, refused ones included, as a rate.

    Args:
        forecaster: that goes on from what it learnt before; absent: one that knows nothing.
        fast_s: over which the present rate is measured.
    """

    def __init__(self, settings: ForecastSettings, fast_s: float, forecaster: Forecaster | None = None):
        self.forecaster = forecaster or Forecaster(settings)
        self._fast_s = fast_s
        self._recent: deque[Signals] = deque()
        self._step = -1
        self._arrived = self._covered_s = 0.0
        self._at_s = float("-inf")

    @property
    def step_began_s(self) -> float:
        """When the latest step that the forecaster was told of began."""
        return self.forecaster.step * self.forecaster.settings.step_s

    @property
    def is_current(self) -> bool:
        """Whether the forecaster was told of the present: it was not when the clock went back, or after a silence."""
        most_s = max(10 * self.forecaster.settings.step_s, 2 * self._fast_s)
        return self.forecaster.step >= 0 and 0 <= self._at_s - self.step_began_s <= most_s

    def take(self, signals: Signals) -> None:
        """Count an interval. Arrivals of a step become one observation when the step has ended."""
        step_s = self.forecaster.settings.step_s
        if signals.at_s < self._at_s:
            self._recent.clear()  # of a clock that was wrong then, or is now
        self._at_s = signals.at_s
        self._recent.append(signals)
        while self._recent[0].at_s - self._recent[0].interval_s < signals.at_s - self._fast_s and len(self._recent) > 1:
            self._recent.popleft()
        step = int((signals.at_s - signals.interval_s / 2) // step_s)
        if step != self._step:
            self._finish()
            self._step = step
        self._arrived += signals.arrived
        self._covered_s += signals.interval_s
        if signals.at_s >= (step + 1) * step_s - 1e-6 * step_s:
            self._finish()

    def now_per_s(self) -> float:
        """Mean rate over the last seconds."""
        covered_s = sum(each.interval_s for each in self._recent)
        return sum(each.arrived for each in self._recent) / covered_s if covered_s else 0.0

    def bounds_per_s(self) -> tuple[float, float]:
        """Between which the rate surely is that the last seconds show: two standard errors of a count (Poisson)."""
        covered_s = sum(each.interval_s for each in self._recent)
        arrived = sum(each.arrived for each in self._recent)
        off = SURE * math.sqrt(arrived)
        return (max(0.0, arrived - off) / covered_s, (arrived + off) / covered_s) if covered_s else (0.0, 0.0)

    def ahead(self, leads_s: Sequence[float], quantile: float) -> tuple[Forecast, ...]:
        """What comes so many seconds after the latest signals; nothing while the forecast does not know the present."""
        if not self.is_current:
            return ()
        since_s, most_s = self._at_s - self.step_began_s, self.forecaster.settings.max_lead_s
        return self.forecaster.forecasts([min(since_s + lead_s, most_s) for lead_s in leads_s], (quantile,))

    def _finish(self) -> None:
        if self._covered_s > 0 and self._step >= 0:
            middle_s = (self._step + 0.5) * self.forecaster.settings.step_s
            self.forecaster.observe(middle_s, self._arrived / self._covered_s)
        self._arrived = self._covered_s = 0.0


@dataclass
class Crowding:
    """Whether requests ask for fewer different things than usual, which is how a hot event begins."""

    usual: Usual
    fall_bits: float = 0.0

    def take(self, entropy_bits: float | None) -> bool:
        """One reading; what is not usual changes the usual only slowly."""
        if entropy_bits is None:
            return False
        self.fall_bits, score = self.usual.fall(entropy_bits)
        hot = self.usual.seen >= READINGS and score >= ALARM and self.fall_bits >= LEAST_FALL_BITS
        self.usual.learn(entropy_bits, LEARNING / 10 if hot else LEARNING)
        return hot
