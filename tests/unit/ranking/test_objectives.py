"""Objectives become one score, and what is not finite sinks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from configs.errors import ConfigError
from ranking.objectives import combine

NAMES = ("engage", "like", "rating")


VALUES = hnp.arrays(np.float32, (3, 4, 3), elements=st.floats(0, 5, width=32))
WEIGHT = st.floats(0.1, 3)


@given(values=VALUES, a=WEIGHT, b=WEIGHT)
def test_the_score_is_the_weighted_sum(values, a, b):
    scores = combine(values, NAMES, {"engage": a, "rating": b})
    assert scores.shape == (3, 4) and scores.dtype == np.float32
    np.testing.assert_allclose(scores, a * values[..., 0] + b * values[..., 2], rtol=1e-5)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_sinks_and_leaves_the_others(bad):
    values = np.array([[[0.5, 0.5, 3.0], [bad, 0.5, 3.0]]], np.float32)
    scores = combine(values, NAMES, {"engage": 1.0})
    assert scores[0, 0] == 0.5 and scores[0, 1] == -np.inf


def test_an_unweighted_objective_cannot_spoil_a_score():
    values = np.array([[[0.5, np.nan]]], np.float32)
    assert combine(values, ("engage", "like"), {"engage": 1.0, "like": 0.0})[0, 0] == 0.5


def test_weights_of_absent_objectives_are_ignored():
    assert combine(np.array([[[0.25]]], np.float32), ("engage",), {"engage": 2.0, "like": 1.0})[0, 0] == 0.5


def test_weights_that_fit_nothing_are_refused_by_name():
    with pytest.raises(ConfigError, match="clicks.*known"):
        combine(np.zeros((1, 1, 1), np.float32), ("engage",), {"clicks": 1.0})
    with pytest.raises(ConfigError, match="engage"):
        combine(np.zeros((1, 1, 1), np.float32), ("engage",), {"like": 1.0})


def test_no_candidates_give_no_scores():
    assert combine(np.zeros((2, 0, 1), np.float32), ("engage",), {"engage": 1.0}).shape == (2, 0)
