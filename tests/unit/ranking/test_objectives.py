"""Objectives become one score, and what is not finite sinks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from configs.errors import ConfigError
from ranking.objectives import Weighting, combine

NAMES = ("engage", "like", "rating")
ITEMS = np.arange(1, 13, dtype=np.int32).reshape(3, 4)
NO_EVIDENCE = np.zeros((3, 0), np.float32)

VALUES = hnp.arrays(np.float32, (3, 4, 3), elements=st.floats(0, 5, width=32))
EVIDENCE = hnp.arrays(np.float32, (3, 4), elements=st.floats(0, 5, width=32))
WEIGHT = st.floats(0.1, 3)


def score(values: list[float], weights: dict[str, float], names: tuple[str, ...] = NAMES) -> float:
    """The score of one candidate with these objectives."""
    objectives = np.array([[values]], np.float32)
    return combine(ITEMS[:1, :1], NO_EVIDENCE[:1], objectives, Weighting.of(names, weights).values)[1][0, 0]


@given(values=VALUES, evidence=EVIDENCE, a=WEIGHT, b=WEIGHT, c=WEIGHT)
def test_the_score_is_the_weighted_sum_of_evidence_and_objectives(values, evidence, a, b, c):
    weighting = Weighting.of(("recall", *NAMES), {"recall": c, "engage": a, "rating": b})
    both, scores = combine(ITEMS, evidence, values, weighting.values)
    assert scores.shape == (3, 4) and scores.dtype == np.float32
    np.testing.assert_allclose(scores, c * evidence + a * values[..., 0] + b * values[..., 2], rtol=1e-5)
    np.testing.assert_array_equal(both, np.concatenate([evidence[..., None], values], axis=2))


@given(values=VALUES, a=WEIGHT)
def test_without_evidence_the_objectives_count_alone(values, a):
    both, scores = combine(ITEMS, NO_EVIDENCE, values, Weighting.of(NAMES, {"like": a}).values)
    np.testing.assert_allclose(scores, a * values[..., 1], rtol=1e-5)
    np.testing.assert_array_equal(both, values)


def test_padding_has_no_objectives_and_sinks():
    items, values = np.array([[4, 0]], np.int32), np.ones((1, 2, 3), np.float32)
    both, scores = combine(items, np.ones((1, 2), np.float32), values, np.ones(4, np.float32))
    assert scores.tolist() == [[4.0, -np.inf]]
    assert np.isnan(both[0, 1]).all() and not np.isnan(both[0, 0]).any()


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_score_that_is_not_finite_sinks_and_leaves_the_others(bad):
    values = np.array([[[0.5, 0.5, 3.0], [bad, 0.5, 3.0]]], np.float32)
    _, scores = combine(ITEMS[:1, :2], NO_EVIDENCE[:1], values, Weighting.of(NAMES, {"engage": 1.0}).values)
    assert scores[0, 0] == 0.5 and scores[0, 1] == -np.inf


def test_an_unweighted_objective_cannot_spoil_a_score():
    assert score([0.5, np.nan], {"engage": 1.0, "like": 0.0}, ("engage", "like")) == 0.5


def test_weights_of_absent_objectives_are_ignored():
    assert score([0.25], {"engage": 2.0, "like": 1.0}, ("engage",)) == 0.5


def test_weights_that_fit_nothing_are_refused_by_name():
    with pytest.raises(ConfigError, match=r"clicks.*known"):
        Weighting.of(("engage",), {"clicks": 1.0})
    with pytest.raises(ConfigError, match="engage"):
        Weighting.of(("engage",), {"like": 1.0})


def test_no_candidates_give_no_scores():
    nothing = np.zeros((2, 0), np.int32), np.zeros((2, 0), np.float32), np.zeros((2, 0, 1), np.float32)
    assert combine(*nothing, np.ones(1, np.float32))[1].shape == (2, 0)
