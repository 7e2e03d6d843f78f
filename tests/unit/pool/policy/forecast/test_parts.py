"""The parts of the forecast, each against an independent source."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.policy.forecast.blend import Blend
from pool.policy.forecast.history import SlotHistory
from pool.policy.forecast.regression import CERTAINTY, FORGETTING, Regression
from pool.policy.forecast.spread import Spread

ROW = np.array([0])
ALONE = np.ones(1)
"""One lead, whose forecasts do not overlap."""


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 100)), min_size=1, max_size=30), st.integers(2, 9))
def test_history_is_the_mean_of_each_of_the_latest_slots(steps, size):
    history, kept, slot = SlotHistory(size), {}, 3
    for ahead, rate in steps:
        slot += ahead
        history.add(slot, rate)
        kept.setdefault(slot, []).append(rate)
    expected = [np.mean(kept[n]) if n in kept and n > slot - size else np.nan for n in range(slot + 3)]
    assert history.at(np.arange(slot + 3.0)) == pytest.approx(expected, nan_ok=True)
    restored = SlotHistory.restored(json.loads(json.dumps(history.plain())))
    assert restored.at(np.arange(slot + 3.0)) == pytest.approx(expected, nan_ok=True)


def test_between_two_slots_history_is_a_straight_line_and_unknown_beside_an_unknown_one():
    history = SlotHistory(10)
    for slot, rate in ((0, 10.0), (1, 20.0), (3, 40.0)):
        history.add(slot, rate)
    found = history.at(np.array([0.0, 0.25, 1.0, 1.5, 3.0, 3.5, -0.5]))
    assert found == pytest.approx([10.0, 12.5, 20.0, np.nan, 40.0, np.nan, np.nan], nan_ok=True)


def test_the_blend_comes_near_the_best_mixture_and_starts_at_the_first():
    chance = np.random.default_rng(5)
    blend, lost, mixed = Blend(ALONE, 3), [], []
    assert blend.weights(ROW, np.ones((1, 3), bool)).tolist() == [[1, 0, 0]]
    for _ in range(400):  # what comes lies half-way between the second and the third
        rate = chance.uniform(50, 100)
        off, noise = chance.uniform(10, 20), chance.normal(0, 1)
        told = np.array([[chance.uniform(50, 100), rate + off + noise, rate - off + noise]])
        weights = blend.weights(ROW, np.isfinite(told))
        assert weights.sum() == pytest.approx(1) and (weights >= 0).all()
        lost.append(abs(float((weights * told).sum()) - rate))
        mixed.append(abs(noise))
        blend.learn(ROW, told, np.array([rate]))
    assert np.mean(lost[200:]) < 1.6 * np.mean(mixed[200:])
    assert np.mean(lost[200:]) < 15 / 4  # each of the two alone is 15 off


def test_an_expert_that_knows_nothing_is_not_asked_and_earns_nothing():
    blend = Blend(ALONE, 3)
    for _ in range(20):
        blend.learn(ROW, np.array([[10.0, 19.0, np.nan]]), np.array([20.0]))
    assert blend.trust(ROW) == 1
    assert blend.weights(ROW, np.array([[True, True, False]]))[0] == pytest.approx([0, 1, 0])
    assert blend.weights(ROW, np.array([[True, False, True]]))[0] == pytest.approx([1, 0, 0])


def test_what_looks_better_on_few_errors_is_trusted_the_less_the_more_they_overlap():
    chance = np.random.default_rng(12)
    alone, together = Blend(ALONE, 2), Blend(16 * ALONE, 2)
    for off in chance.normal(1, 2, 40):  # the second is better by one, give or take two
        for blend in (alone, together):
            blend.learn(ROW, np.array([[100.0 - 10, 100.0 - 10 + off]]), np.array([100.0]))
    standard_errors = 40**0.5 / 2
    assert alone.trust(ROW)[0] == 1
    assert together.trust(ROW)[0] == pytest.approx(standard_errors / 16**0.5 / 2, abs=0.2)


def test_the_regression_is_that_of_weighted_least_squares():
    chance = np.random.default_rng(8)
    told, rates, start = chance.uniform(0.5, 2, (60, 3)), chance.uniform(0.5, 2, 60), np.array([1.0, 0, 0])
    regression = Regression(ALONE, 3)
    for x, y in zip(told, rates, strict=True):
        regression.learn(ROW, x[None], np.array([y]), 1.0)
    weights = FORGETTING ** np.arange(59, -1, -1)
    prior = np.eye(3) * CERTAINTY * FORGETTING**60
    normal = (told * weights[:, None]).T @ told + prior
    expected = np.linalg.solve(normal, (told * weights[:, None]).T @ rates + prior @ start)
    assert regression.rule[0] == pytest.approx(expected, rel=1e-6)


def test_the_regression_finds_what_no_mixture_can():
    chance = np.random.default_rng(3)
    regression = Regression(ALONE, 3)
    for _ in range(400):
        x = chance.uniform(50, 150, 3)
        regression.learn(ROW, x[None], x[:1] + x[1:2] - x[2:], 100.0)
    assert regression.foretell(ROW, np.array([[100.0, 130.0, 60.0]]))[0] == pytest.approx(170, rel=0.01)


@pytest.mark.parametrize(("quantile", "mean"), [(0.9, 400.0), (0.5, 100.0), (0.1, 100.0), (0.9, 25.0)])
def test_quantiles_of_independent_callers_are_those_of_poisson_at_any_rate(quantile, mean):
    chance = np.random.default_rng(11)
    spread = Spread(1, 2_000)
    for told in chance.choice([25.0, 100.0, 400.0], 2_000):
        spread.learn(ROW, np.array([told]), np.array([float(chance.poisson(told))]))
    errors = spread.errors(0, mean, [quantile])
    expected = {0.9: 1.2816, 0.5: 0.0, 0.1: -1.2816}[quantile] * mean**0.5  # the normal's, which Poisson is near
    assert errors is not None and errors[0] == pytest.approx(expected, abs=0.2 * mean**0.5)


def test_a_tenth_of_what_comes_exceeds_the_upper_quantile_of_few_errors():
    chance = np.random.default_rng(2)
    exceeded = 0
    for _ in range(400):
        spread, came = Spread(1, 64), chance.normal(100, 10, 20)
        for rate in came[:-1]:
            spread.learn(ROW, np.array([100.0]), np.array([rate]))
        errors = spread.errors(0, 100.0, [0.9])
        assert errors is not None
        exceeded += came[-1] > 100 + errors[0]
    assert exceeded / 400 == pytest.approx(0.1, abs=0.04)  # 2.7 standard errors


def test_of_too_few_errors_nothing_is_said():
    assert Spread(1, 64).errors(0, 100.0, [0.9]) is None
