"""The arithmetic of the benchmarks that simulate: errors, growth, and intervals of differences."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.calibration.figures import Figures, errors, floors, of_live
from benchmarks.learned.__main__ import interval
from benchmarks.learned.days import split_days
from benchmarks.load import Outcomes
from benchmarks.scale.__main__ import growth
from benchmarks.scale.day import REQUESTS_A_DAY, day_of
from pool.simulator.reading import load


def outcomes(latency_ms, status=200, found=True):
    count = len(latency_ms)
    return Outcomes(
        0.0,
        scheduled_s=np.arange(count) / 10,
        latency_s=np.array(latency_ms) / 1e3,
        status=np.full(count, status),
        retried=np.zeros(count, bool),
        found=np.full(count, found),
        lag_s=np.zeros(count),
        bodies=None,
        bound_hit=False,
        cpu_s=0.0,
    )


def test_a_live_replay_violates_by_being_late():
    seen = of_live(outcomes([10.0] * 90 + [60.0] * 10), slo_ms=50, busy_s=3.0, device_s=20.0)
    assert seen.violations == pytest.approx(0.1)
    assert seen.utilisation == pytest.approx(0.15)
    assert (seen.p50_ms, seen.p99_ms) == pytest.approx((10.0, 60.0))
    assert of_live(outcomes([10.0] * 10, found=False), 50, 1.0, 10.0).violations == 1.0


def test_errors_are_relative_and_rare_violations_are_counted_in_requests():
    live = Figures(0.5, 10.0, 40.0, 0.10)
    found = errors(live, Figures(0.55, 9.0, 50.0, 0.08))
    assert found == pytest.approx({"utilisation": 0.1, "p50_ms": 0.1, "p99_ms": 0.25, "violations": 0.2})
    assert [floor.met for floor in floors(found)] == [True, True, False, False]
    rare = errors(Figures(0.5, 10.0, 40.0, 0.001), Figures(0.5, 10.0, 40.0, 0.003))
    assert rare["violations"] == pytest.approx(0.002)


def test_growth_is_the_power_of_the_number_of_leases():
    rows = [{"leases": leases, "tick_p50_ms": 0.001 * leases**1.5} for leases in (100, 1_000, 10_000)]
    assert growth(rows) == pytest.approx(1.5)


def test_a_mean_difference_that_is_none_has_an_interval_around_nothing():
    differences = np.random.default_rng(0).normal(0.0, 1.0, 200)
    low, high = interval(differences)
    assert low < 0 < high
    assert interval(np.full(5, 0.25)) == (0.25, 0.25)


def test_days_that_are_held_out_come_after_those_that_are_learnt_from():
    learning, held_out = split_days(12)
    assert len(set(learning)) == len(set(held_out)) == 12
    assert max(learning) < min(held_out)


def test_a_simulated_day_has_its_devices_and_its_requests():
    loaded = load(day_of(1_000, 86_400, 60))
    assert sum(shelf.count for shelf in loaded.scenario.fleet) == 1_000
    asked = sum(demand.expected(0, 86_400) for demand in loaded.demands.values())
    assert asked == pytest.approx(REQUESTS_A_DAY, rel=0.02)
