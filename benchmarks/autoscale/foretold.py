"""Forecasts of a stretch, made once: what arrives does not depend on who decides, so all settings share them."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np

from benchmarks.autoscale.demands import Case, Stretch
from configs.forecast_settings import ForecastSettings
from pool.policy.forecast.forecaster import Forecast, Forecaster


class Foretold:
    """In the place of a `Forecaster`: answers from a table, by the step that was observed last.

    Args:
        rates: [N, L, Q] by step, lead and quantile.
    """

    def __init__(
        self,
        settings: ForecastSettings,
        first: int,
        leads_s: Sequence[float],
        quantiles: Sequence[float],
        rates: np.ndarray,
    ):
        self.settings, self.step = settings, first - 1
        self._first, self._rates = first, rates
        self._leads = {round(lead_s): place for place, lead_s in enumerate(leads_s)}
        self._quantiles = {quantile: place for place, quantile in enumerate(quantiles)}

    def again(self) -> Foretold:
        """The same, before the first step of the stretch."""
        fresh = copy.copy(self)
        fresh.step = self._first - 1
        return fresh

    def observe(self, time_s: float, rate: float) -> None:
        self.step = int(time_s // self.settings.step_s)

    def forecasts(self, leads_s: Sequence[float], quantiles: Sequence[float]) -> tuple[Forecast, ...]:
        row, columns = self._rates[self.step - self._first], [self._quantiles[each] for each in quantiles]
        told = (row[self._leads[round(lead_s)], columns] for lead_s in leads_s)
        return tuple(Forecast(lead_s, tuple(rates), 0.0, 0.0, 0) for lead_s, rates in zip(leads_s, told, strict=True))


def foretell(case: Case, seen: Stretch, quantiles: Sequence[float]) -> Foretold:
    """All forecasts that an autoscaler may ask for in a stretch."""
    ready_s = case.start_s + case.interval_s
    leads_s = [case.interval_s + each for each in (0.0, ready_s / 2, ready_s, 2 * case.start_s + case.interval_s)]
    forecaster, step_s = Forecaster(case.forecast), case.interval_s
    _feed_past(forecaster, seen, step_s)
    first = int((seen.start_s + step_s / 2) // step_s)
    rates = np.empty((len(seen.arrived), len(leads_s), len(quantiles)))
    for place, arrived in enumerate(seen.arrived.tolist()):
        forecaster.observe(seen.start_s + (place + 0.5) * step_s, arrived / step_s)
        rates[place] = [told.rates for told in forecaster.forecasts(leads_s, quantiles)]
    return Foretold(case.forecast, first, leads_s, quantiles, rates)


def _feed_past(forecaster: Forecaster, seen: Stretch, step_s: float) -> None:
    """The trace's own steps of the remembered days, and the last intervals one by one."""
    fine_s = seen.start_s - len(seen.before) * step_s
    oldest_s = seen.start_s - forecaster.settings.history_days * 86_400
    for at_s, rate in zip(seen.past_s.tolist(), seen.past.tolist(), strict=True):
        if oldest_s <= at_s and at_s + seen.step_s <= fine_s:
            forecaster.observe(at_s + seen.step_s / 2, rate)
    for place, arrived in enumerate(seen.before.tolist()):
        forecaster.observe(fine_s + (place + 0.5) * step_s, arrived / step_s)
