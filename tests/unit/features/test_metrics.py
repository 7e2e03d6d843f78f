"""Metrics agree with their definitions, computed the slow way."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.metrics import auc, log_loss, ndcg_at_k, recall_at_k

PAIRS = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 5)), min_size=2, max_size=30)


@given(PAIRS)
def test_auc_is_the_share_of_pairs_ranked_right(pairs):
    labels, scores = np.array(pairs).T
    positive, negative = scores[labels == 1], scores[labels == 0]
    wins = [(p > n) + (p == n) / 2 for p in positive for n in negative]
    assert (
        auc(labels, scores.astype(float)) == pytest.approx(np.mean(wins)) if wins else math.isnan(auc(labels, scores))
    )


def test_log_loss_of_a_coin_is_log_two():
    assert log_loss(np.array([0, 1, 1]), np.full(3, 0.5)) == pytest.approx(math.log(2))


def test_log_loss_of_a_certain_error_is_finite():
    assert math.isfinite(log_loss(np.array([1]), np.array([0.0])))


def test_recall_and_ndcg_of_a_slate_worked_by_hand():
    ranked = np.array([[3, 1, 2], [9, 8, 7]])
    relevant = [np.array([1, 2]), np.array([9, 5, 6, 4])]
    assert recall_at_k(ranked, relevant) == pytest.approx((1.0 + 0.25) / 2)
    first = (1 / math.log2(3) + 1 / math.log2(4)) / (1 + 1 / math.log2(3))
    second = 1 / (1 + 1 / math.log2(3) + 1 / math.log2(4))
    assert ndcg_at_k(ranked, relevant) == pytest.approx((first + second) / 2)


@given(st.permutations(range(6)), st.sets(st.integers(0, 5), min_size=1))
def test_ndcg_is_one_exactly_when_the_relevant_come_first(order, relevant):
    wanted = np.array(sorted(relevant))
    found = ndcg_at_k(np.array([order]), [wanted])
    assert 0 < found <= 1 + 1e-12
    assert (found > 1 - 1e-12) == (set(order[: len(wanted)]) == relevant)
