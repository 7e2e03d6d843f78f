"""The slate keeps its contracts: nothing lost, nothing twice, caps held while they can be."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ranking.rerank import mmr, rank, select

SCORE = st.floats(-10, 10, width=32) | st.just(np.nan) | st.just(np.inf)
SCORES = hnp.arrays(np.float32, st.integers(0, 30), elements=SCORE)


@given(scores=SCORES, k=st.integers(1, 40), diversity=st.floats(0, 1), seed=st.integers(0, 99))
def test_a_slate_is_k_distinct_places_with_or_without_rules(scores, k, diversity, seed):
    rng = np.random.default_rng(seed)
    items = rng.permutation(len(scores)) + 2
    codes = rng.integers(0, 4, (len(scores) + 2, 2)).astype(np.int32)
    for caps in ([], [(codes, 2), (codes[:, 0], 1)]):
        chosen = select(items, scores, k, caps, diversity, rng.normal(size=(len(scores) + 2, 3)))
        assert len(chosen) == min(k, len(scores))
        assert len(set(chosen.tolist())) == len(chosen)
        assert all(0 <= place < len(scores) for place in chosen)


@given(scores=SCORES)
def test_ranking_sinks_what_is_not_finite_and_keeps_ties_in_order(scores):
    order = rank(scores)
    finite = [float(scores[p]) for p in order if np.isfinite(scores[p])]
    assert finite == sorted(finite, reverse=True)
    assert np.isfinite(scores[order]).tolist() == sorted(np.isfinite(scores).tolist(), reverse=True)
    for first, second in zip(order, order[1:], strict=False):
        if scores[first] == scores[second] or not (np.isfinite(scores[first]) or np.isfinite(scores[second])):
            assert first < second


@given(limit=st.integers(1, 4), k=st.integers(1, 12), seed=st.integers(0, 99))
def test_a_cap_is_exceeded_only_when_nothing_else_is_left(limit, k, seed):
    rng = np.random.default_rng(seed)
    codes = np.concatenate([[0, 0], rng.integers(0, 5, 20)]).astype(np.int32)
    items = np.arange(2, 22)
    chosen = select(items, rng.normal(size=20), k, [(codes, limit)])
    possible = sum(min(limit, n) if value else n for value, n in enumerate(np.bincount(codes[2:])))
    counts = np.bincount(codes[items[chosen]], minlength=5)
    excess = np.maximum(counts[1:] - limit, 0).sum()
    assert excess == max(0, min(k, 20) - possible)


def test_a_multi_valued_item_counts_towards_each_of_its_values():
    codes = np.array([[0, 0], [0, 0], [1, 2], [2, 3], [3, 4], [5, 0]], np.int32)
    chosen = select(np.array([2, 3, 4, 5]), np.array([4.0, 3.0, 2.0, 1.0]), 3, [(codes, 1)])
    # Item 3 shares value 2 with item 2; item 4 is free again as item 3 was passed over.
    assert chosen.tolist() == [0, 2, 3]


def test_no_value_is_never_capped():
    codes = np.zeros(6, np.int32)
    assert select(np.arange(2, 6), -np.arange(4.0), 4, [(codes, 1)]).tolist() == [0, 1, 2, 3]


def test_diversity_moves_a_near_copy_down():
    vectors = np.array([[0, 0], [0, 0], [1, 0], [1, 0.01], [0, 1]], np.float32)
    items, scores = np.array([2, 3, 4]), np.array([1.0, 0.99, 0.5])
    assert select(items, scores, 3, vectors=vectors).tolist() == [0, 1, 2]
    assert select(items, scores, 3, diversity=0.6, vectors=vectors).tolist() == [0, 2, 1]


def test_without_vectors_shared_values_stand_for_likeness():
    codes = np.array([[0, 0], [0, 0], [1, 2], [1, 2], [3, 4]], np.int32)
    chosen = select(np.array([2, 3, 4]), np.array([1.0, 0.99, 0.5]), 3, [(codes, 9)], diversity=0.6)
    assert chosen.tolist() == [0, 2, 1]


@given(n=st.integers(1, 7), diversity=st.floats(0, 1), seed=st.integers(0, 99))
def test_mmr_takes_the_best_item_of_every_round(n, diversity, seed):
    rng = np.random.default_rng(seed)
    scores, rows = rng.random(n), rng.normal(size=(n, 3))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    likeness = rows @ rows.T
    span = max(scores.max() - scores.min(), 1e-12)
    expected: list[int] = []
    for _ in range(n):

        def worth(p: int) -> float:
            nearest = max((likeness[p, q] for q in expected), default=0.0)
            return (1 - diversity) * (scores[p] - scores.min()) / span - diversity * nearest

        expected.append(max((p for p in range(n) if p not in expected), key=worth))
    assert mmr(scores, likeness, n, diversity).tolist() == expected
