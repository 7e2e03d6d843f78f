"""What a forecast is good for: seasons and holidays are foreseen, and where there is nothing to foresee it says so."""

from __future__ import annotations

import json

import numpy as np
import pytest

from configs.forecast_settings import ForecastSettings
from pool.policy.forecast.forecaster import Forecaster

STEP_S, DAY, WEEK = 7_200, 12, 84
COARSE = ForecastSettings(step_s=STEP_S, slot_s=STEP_S, history_days=30, max_lead_s=4 * STEP_S)
FINE = ForecastSettings(step_s=10, slot_s=300, history_days=2, max_lead_s=600)


def fed(rates: np.ndarray, settings: ForecastSettings = COARSE) -> Forecaster:
    forecaster = Forecaster(settings)
    for step, rate in enumerate(rates.tolist()):
        forecaster.observe(step * settings.step_s, rate)
    return forecaster


def missed(rates: np.ndarray, lead: int, asked: range) -> tuple[float, float, float]:
    """Mean absolute error of the forecast and of the last value, and the share within the 0.9 quantile."""
    forecaster, told = Forecaster(COARSE), []
    for step in range(asked.stop):
        forecaster.observe(step * STEP_S, float(rates[step]))
        if step in asked:
            told.append(forecaster.forecast(lead * STEP_S, (0.5, 0.9)).rates)
    came, last = rates[np.array(asked) + lead], rates[np.array(asked)]
    middle, upper = np.array(told).T
    return float(np.abs(middle - came).mean()), float(np.abs(last - came).mean()), float((came <= upper).mean())


def weekly(weeks: int) -> np.ndarray:
    """Busy days, quiet nights and weekends, and on the first day at noon a spike out of nothing."""
    steps = np.arange(weeks * WEEK)
    rates = 100 + 60 * np.sin((steps % DAY - 3) / DAY * 2 * np.pi)
    rates *= np.where(steps // DAY % 7 >= 5, 0.5, 1.0)
    rates[steps % WEEK == 6] = 600
    return rates * np.random.default_rng(1).normal(1, 0.03, len(steps))


def test_a_weekly_spike_is_foreseen():
    rates = weekly(4)[: 3 * WEEK + 6]  # the last is one step before the spike
    told = fed(rates).forecast(STEP_S)
    assert told.point > 450 and rates[-1] < 200
    assert told.history_share > 0.8


def test_a_season_halves_the_error_of_the_last_value():
    told, last, within = missed(weekly(4), 2, range(3 * WEEK, 4 * WEEK - 2, 2))
    assert told < 0.5 * last
    assert 0.75 <= within <= 1.0


@pytest.mark.parametrize("lead", [1, 4])
def test_on_noise_it_does_not_lose_to_the_last_value_and_its_quantile_holds(lead):
    rates = np.random.default_rng(3).lognormal(3, 0.5, 260)
    told, last, within = missed(rates, lead, range(100, 250, 2))
    assert told < last
    assert within == pytest.approx(0.9, abs=0.08)  # 2.3 standard errors


def test_on_a_random_walk_nothing_beats_the_last_value_and_it_does_not_try():
    rates = 500 + np.cumsum(np.random.default_rng(4).normal(0, 5, 300))
    told, last, _ = missed(rates, 1, range(150, 299, 3))
    assert told < 1.02 * last


def test_a_holiday_is_known_by_the_holidays_before_it():
    """The last day is like two days before it, of other weekdays; no day a week or three days before tells."""
    steps = np.arange(DAY)
    workday, holiday = 100 + 80 * (steps >= 4) * (steps < 9), 70 + 100 * (steps >= 9)
    days = np.stack([holiday if day in (8, 17, 26) else workday for day in range(27)])
    rates = days.ravel() * np.random.default_rng(5).normal(1, 0.02, days.size)
    forecaster = fed(rates[: 25 * DAY + 8])  # until four in the afternoon, before the evening peak of holidays
    told = forecaster.forecast(2 * STEP_S)
    assert told.rates[1] < 120, f"there is none on a workday: {told}"
    for step in range(25 * DAY + 8, 26 * DAY + 8):
        forecaster.observe(step * STEP_S, rates[step])
    told = forecaster.forecast(2 * STEP_S)
    assert told.point > 120 and told.rates[1] > 150, f"it is foreseen on a holiday: {told}"


def test_quantiles_do_not_cross_and_are_never_negative():
    forecaster = fed(np.random.default_rng(6).exponential(2.0, 200), FINE)
    for lead_s in (0, 10, 47, 300, 600):
        rates = forecaster.forecast(lead_s, (0.99, 0.01, 0.5, 0.9)).rates
        assert 0 <= rates[1] <= rates[2] <= rates[3] <= rates[0]


def test_without_experience_it_says_so_by_wide_quantiles():
    forecaster = fed(np.array([50.0]), FINE)
    told = forecaster.forecast(60, (0.05, 0.5, 0.95))
    assert (told.checked, told.history_share, told.point) == (0, 0.0, 50.0)
    assert told.rates == pytest.approx((5.0, 50.0, 95.0))


def test_asking_changes_nothing_and_a_restored_one_goes_on_the_same():
    rates = np.random.default_rng(7).poisson(20, 150).astype(float)
    forecaster = fed(rates, FINE)
    before = json.dumps(forecaster.plain())
    forecaster.forecast(300, (0.5, 0.99))
    assert json.dumps(forecaster.plain()) == before
    restored = Forecaster.restored(json.loads(before))
    for step in range(150, 200):
        for each in (forecaster, restored):
            each.observe(step * 10, 20.0 + step % 3)
    assert restored.forecast(77, (0.5, 0.9)) == forecaster.forecast(77, (0.5, 0.9))
    assert json.dumps(restored.plain()) == json.dumps(forecaster.plain())


def test_steps_left_out_are_unknown_and_not_zero():
    forecaster = fed(np.full(50, 30.0), FINE)
    forecaster.observe(5_000, 30.0)
    told = forecaster.forecast(60, (0.1, 0.9))
    assert told.point == pytest.approx(30.0) and told.rates == pytest.approx((30.0, 30.0))


def test_a_second_observation_of_a_step_is_averaged_and_a_late_one_is_counted_and_left():
    forecaster = fed(np.full(5, 30.0), FINE)
    forecaster.observe(44, 40.0)
    forecaster.observe(20, 1_000.0)
    assert forecaster.late == 1
    assert forecaster.forecast(10).point == pytest.approx(35.0, rel=0.2)


@pytest.mark.parametrize(("time_s", "rate"), [(100.0, -1.0), (100.0, float("nan")), (float("inf"), 1.0), (-1.0, 1.0)])
def test_a_wrong_observation_is_refused_and_changes_nothing(time_s, rate):
    forecaster = fed(np.full(5, 30.0), FINE)
    before = forecaster.plain()
    with pytest.raises(ValueError, match="finite number"):
        forecaster.observe(time_s, rate)
    assert json.dumps(forecaster.plain()) == json.dumps(before)


def test_wrong_questions_are_refused_by_name():
    with pytest.raises(ValueError, match="nothing was observed"):
        Forecaster(FINE).forecast(10)
    forecaster = fed(np.full(5, 30.0), FINE)
    with pytest.raises(ValueError, match="max_lead_s"):
        forecaster.forecast(601)
    with pytest.raises(ValueError, match="quantiles"):
        forecaster.forecast(10, (0.5, 1.0))
    with pytest.raises(ValueError, match="format"):
        Forecaster.restored({"format": 0})


@pytest.mark.parametrize(
    ("stated", "named"),
    [({"slot_s": 7}, "slot_s"), ({"step_s": 7, "slot_s": 7}, "slot_s"), ({"max_lead_s": 5}, "max_lead_s")],
)
def test_settings_that_do_not_fit_together_are_refused(stated, named):
    with pytest.raises(ValueError, match=named):
        ForecastSettings(**stated)
