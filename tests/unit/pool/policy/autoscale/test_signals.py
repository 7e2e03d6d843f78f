"""What one replica can do, between what was measured."""

from __future__ import annotations

import math

import pytest

from configs.errors import ConfigError
from pool.policy.autoscale.signals import ServiceCurve

CURVE = ServiceCurve(((20.0, 10.0), (60.0, 50.0), (80.0, 250.0)), start_s=30.0)


@pytest.mark.parametrize(("slo_ms", "rate"), [(10, 20), (30, 40), (50, 60), (100, 65), (250, 80), (9_999, 80)])
def test_the_sustained_rate_lies_on_the_line_between_two_measurements(slo_ms, rate):
    assert CURVE.sustained_per_s(slo_ms) == pytest.approx(rate)


@pytest.mark.parametrize(("rate", "p99_ms"), [(1, 10), (20, 10), (40, 30), (70, 150), (80, 250), (80.1, math.inf)])
def test_latency_at_a_rate_is_infinite_beyond_the_last_measurement(rate, p99_ms):
    assert CURVE.p99_ms(rate) == pytest.approx(p99_ms)


def test_a_tail_that_falls_and_rises_is_sustained_only_up_to_where_it_first_exceeds():
    assert ServiceCurve(((10, 40), (20, 120), (30, 60)), 1).sustained_per_s(80) == pytest.approx(15)


def test_an_objective_that_no_rate_keeps_is_refused_with_the_remedy():
    with pytest.raises(ConfigError, match=r"slo_ms: 5 .*10 ms at 20/s.*measure at lower rates"):
        CURVE.sustained_per_s(5)


@pytest.mark.parametrize(
    ("points", "start_s", "named"),
    [
        ((), 1.0, "points"),
        (((10.0, 1.0), (10.0, 2.0)), 1.0, "points"),
        (((10.0, math.nan),), 1.0, "points"),
        (((-1.0, 1.0),), 1.0, "points"),
        (((10.0, 1.0),), 0.0, "start_s"),
        (((10.0, 1.0),), math.nan, "start_s"),
    ],
)
def test_a_curve_without_a_meaning_is_refused_with_its_field(points, start_s, named):
    with pytest.raises(ConfigError, match=f"^{named}: "):
        ServiceCurve(points, start_s)
