"""The forecast benchmark's arithmetic, on arms made by hand."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from benchmarks.forecast.arms import Told, came, last_value, origins_of, recpool, seasonal_naive
from benchmarks.forecast.figures import coverage, figures_of, floors, wape
from benchmarks.forecast.series import TAXI
from benchmarks.traces import FOLDER, located
from configs.errors import DataError
from pool.traces import CountTrace

WEEK = 336
RAMP = CountTrace(0.0, 1_800.0, np.arange(2_000.0), ())


def test_wape_weighs_errors_by_what_came():
    told, out = np.array([[8.0, 0.0], [24.0, 2.0]]), np.array([[10.0, 1.0], [20.0, 3.0]])
    assert wape(told, out) == pytest.approx([6 / 30, 2 / 4])
    assert coverage(told, out) == pytest.approx([0.5, 0.0])


@pytest.mark.parametrize(("tune", "first", "end"), [("", 1_399, 1_999), ("1", 799, 1_399)])
def test_reported_and_tuning_origins_lie_in_their_parts(tune, first, end, monkeypatch):
    monkeypatch.setenv("TUNE", tune)
    origins = origins_of(TAXI, RAMP)
    assert origins[0] == first and origins[-1] + 4 == end  # the furthest lead is four steps


def test_the_plain_arms_tell_the_last_value_and_the_last_week():
    origins = np.array([1_500, 1_700])
    assert last_value(TAXI, RAMP, origins).rates[:, :, 0].tolist() == [[1_500] * 3, [1_700] * 3]
    seasonal = seasonal_naive(TAXI, RAMP, origins)
    assert seasonal is not None
    assert (came(TAXI, RAMP, origins) - seasonal.rates[:, :, 0] == WEEK).all()


def test_the_forecast_of_an_origin_knows_nothing_of_what_follows():
    origins = np.array([60, 61])
    changed = dataclasses.replace(RAMP, counts=np.where(np.arange(2_000) > 61, 7.0, RAMP.counts))
    assert (recpool(TAXI, RAMP, origins).rates == recpool(TAXI, changed, origins).rates).all()


def test_floors_take_the_worst_lead():
    out = np.full((10, 3), 100.0)
    upper = np.where(np.arange(10) < 9, 101.0, 99.0)  # nine of ten within
    rates = np.stack([np.full((10, 3), 97.0), np.repeat(upper[:, None], 3, 1), np.full((10, 3), 150.0)], axis=2)
    rates[:, 1, 0] = 94.0
    arms = {
        "recpool": Told(rates),
        "last_value": Told(out[:, :, None] - 5),
        "seasonal_naive": Told(out[:, :, None] - 4),
    }
    found = floors({"taxi": figures_of(TAXI, arms, out, 100 * 7_200)}, {"taxi": TAXI})
    assert [floor.value for floor in found] == pytest.approx([6 / 5, 6 / 4, 0.0])
    assert [floor.met for floor in found] == [False, False, True]


def test_an_absent_trace_is_named_with_the_remedy(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with pytest.raises(DataError, match=f"nyc_taxi.csv is not at .*{FOLDER}"):
        located("nyc_taxi.csv")
