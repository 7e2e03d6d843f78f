"""Micro-steps grow to what fits into the limit, and no further."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.gate.stepper import MicroStepper


@given(fixed_ms=st.floats(0, 2), unit_ms=st.floats(0.001, 2), first=st.integers(1, 1000))
def test_steps_of_a_known_cost_settle_within_the_limit_and_use_most_of_it(fixed_ms, unit_ms, first):
    stepper = MicroStepper(limit_ms=5.0, first_units=first)
    units, over = [], 0
    for step in range(1_500):
        units.append(stepper.units)
        took_ms = fixed_ms + unit_ms * stepper.units
        over += step >= 500 and took_ms > 5.0
        stepper.observe(stepper.units, took_ms)
    assert stepper.is_within_limit
    assert over <= 0.02 * 1_000  # it tries now and then whether a larger step fits by now
    best = int((5.0 - fixed_ms) / unit_ms)
    assert sum(units[500:]) / 1_000 >= best / 2


@given(st.lists(st.tuples(st.integers(1, 10_000), st.floats(0, 1e6)), max_size=50), st.integers(1, 10_000))
def test_a_step_is_never_empty_nor_above_the_most(seen, most):
    stepper = MicroStepper(most_units=most)
    for units, took_ms in seen:
        stepper.observe(units, took_ms)
        assert 1 <= stepper.units <= most


def test_noisy_steps_stay_within_the_limit_nineteen_times_in_twenty():
    noise = random.Random(5)
    stepper = MicroStepper(limit_ms=5.0)
    took = []
    for _ in range(2_000):
        took.append(stepper.units * noise.lognormvariate(-3.0, 0.2))
        stepper.observe(stepper.units, took[-1])
    settled = took[200:]
    assert sum(ms > 5.0 for ms in settled) / len(settled) <= 0.05
    assert sum(settled) / len(settled) >= 2.5


@pytest.mark.parametrize(("took_ms", "then"), [(5.1, 50), (9.0, 50), (50.0, 10), (5_000.0, 1)])
def test_a_step_over_the_limit_halves_the_next_or_cuts_it_to_what_fits(took_ms, then):
    stepper = MicroStepper(limit_ms=5.0, first_units=100)
    stepper.observe(100, took_ms)
    assert stepper.units == then


def test_growth_is_slow_and_by_a_quarter_at_most():
    stepper = MicroStepper(limit_ms=5.0, first_units=100)
    sizes = []
    for _ in range(40):
        stepper.observe(stepper.units, 0.1)
        sizes.append(stepper.units)
    assert sizes[0] == 100
    assert all(before <= after <= 1.25 * before + 1 for before, after in zip(sizes, sizes[1:], strict=False))
    assert sizes[-1] > 500


def test_a_size_that_overran_is_kept_away_from_for_a_while():
    stepper = MicroStepper(limit_ms=5.0, first_units=10)
    sizes = []
    for _ in range(150):
        sizes.append(stepper.units)
        stepper.observe(stepper.units, 6.0 if stepper.units >= 10 else 1.0)
    assert sizes.count(10) == 1
    assert max(sizes[1:]) == 9


def test_a_unit_over_the_limit_is_said_to_be():
    stepper = MicroStepper(limit_ms=5.0)
    assert stepper.is_within_limit
    stepper.observe(1, 12.0)
    assert stepper.units == 1
    assert not stepper.is_within_limit


@pytest.mark.parametrize(("units", "took_ms"), [(0, 1.0), (1, -1.0), (1, float("nan")), (1, float("inf"))])
def test_what_cannot_be_a_measurement_is_refused(units, took_ms):
    with pytest.raises(AssertionError):
        MicroStepper().observe(units, took_ms)
