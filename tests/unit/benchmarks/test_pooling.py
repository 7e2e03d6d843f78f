"""The pooling benchmark's trace and arithmetic, on loads and runs made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.pooling.arms import AT_P95, AT_PEAK, DEDICATED, HEADROOM, POOL, divisions
from benchmarks.pooling.figures import Played, floors, summarise
from benchmarks.pooling.trace import FILE, HALF_HOURS, arrivals, busiest_week, made_week, week
from benchmarks.traces import FOLDER


def played(latency_ms: float, units: int, asked: int = 100, good: int = 100) -> Played:
    """Ten seconds on two devices; a request costs 30 ms and a unit 10 ms when undisturbed."""
    return Played(10.0, 20.0, np.full(asked, latency_ms), good, asked, 0.03 * asked, 0.01 * units, units)


def test_arrivals_follow_the_load_and_its_peak():
    load = np.array([0.25, 1.0, 0.5])
    times_s = arrivals(load, 2_000, 6.0, seed=1)
    assert (np.diff(times_s) >= 0).all() and times_s[0] >= 0 and times_s[-1] < 6
    rates = np.histogram(times_s, bins=3, range=(0, 6))[0] / 2
    assert rates == pytest.approx([500, 2_000, 1_000], rel=0.15)


def test_the_busiest_week_holds_the_busiest_half_hour():
    counts = np.ones(1_000)
    counts[990] = 4.0
    chosen = busiest_week(counts)
    assert len(chosen) == HALF_HOURS and chosen.max() == 1.0 and chosen.min() == 0.25


def test_a_trace_that_is_at_hand_is_read_and_its_last_part_used(tmp_path, monkeypatch):
    rows = [f"2014-07-01 00:00:00,{1_000 if n < 700 else n}" for n in range(1_000)]
    (tmp_path / FILE).write_text("\n".join(["timestamp,value", *rows]))
    monkeypatch.setenv(FOLDER, str(tmp_path))
    load, source = week()
    assert source == FILE and len(load) == 300
    assert (load[0], load[-1]) == (pytest.approx(700 / 999), 1.0)


def test_without_the_trace_a_made_week_stands_in(tmp_path, monkeypatch):
    monkeypatch.setenv(FOLDER, str(tmp_path))
    load, source = week()
    assert source == "made shape" and (load == made_week()).all()
    assert len(load) == HALF_HOURS and load.max() == 1.0 and 0 < load.min() < 0.2 and 0.3 < load.mean() < 0.6


def test_the_slices_are_what_serving_needs_for_its_peak_and_for_its_95th_percentile():
    load = np.concatenate([np.full(96, 0.5), np.full(4, 1.0)])
    by_name = {arm.name: arm for arm in divisions(load)}
    assert by_name[AT_PEAK].serving_milli == round(1_000 * HEADROOM)
    assert by_name[AT_P95].serving_milli == pytest.approx(500 * HEADROOM, abs=10)
    assert (by_name[DEDICATED].serving_milli, by_name[POOL].serving_milli) == (1_000, 0)
    for arm in (by_name[AT_PEAK], by_name[AT_P95]):
        assert arm.devices[0].serving_milli + arm.devices[0].training_milli == 1_000
    assert by_name[POOL].serves == (True, True) and all(device.is_gated for device in by_name[POOL].devices)


def test_useful_work_is_weighed_by_what_it_costs_undisturbed():
    runs = {DEDICATED: [played(40, 900)], POOL: [played(20, 1_600)]}
    found = summarise(runs)
    assert found[DEDICATED]["utilisation"] == pytest.approx((3 + 9) / 20)
    assert found[POOL]["utilisation"] == pytest.approx((3 + 16) / 20)
    assert found[POOL]["p99_ratio"] == pytest.approx(0.5)
    assert [floor.met for floor in floors(found)] == [True, True]


def test_answers_outside_the_slo_are_no_useful_work():
    found = summarise({DEDICATED: [played(40, 900)], POOL: [played(40, 900, good=50)]})
    assert found[POOL]["serving"] == pytest.approx(1.5 / 20)
    assert [floor.met for floor in floors(found)] == [False, False]
