from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from features.eligibility import allowed
from features.ordering import falling

FLOATS = st.floats(width=32, allow_nan=False) | st.sampled_from([0.0, -0.0, np.inf, -np.inf, 1.0, -1.0])
ITEMS = arrays(np.int32, st.tuples(st.integers(1, 4), st.integers(0, 12)), elements=st.integers(0, 8))


@given(arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=40), elements=FLOATS))
def test_the_order_is_that_of_a_stable_sort(scores):
    for row, order in zip(scores, falling(scores), strict=True):
        expected = sorted(range(len(row)), key=lambda place: -row[place])
        assert order.tolist() == expected


@given(ITEMS, st.integers(0, 5), st.randoms(use_true_random=False))
def test_only_real_eligible_and_not_excluded_items_are_allowed_and_each_once(items, count, random):
    excluded = np.array([[random.randint(0, 8) for _ in range(count)] for _ in items], np.int32).reshape(len(items), -1)
    eligible = np.array([random.random() < 0.5 for _ in range(9)])
    kept = allowed(items, excluded, eligible)
    for row, banned, said in zip(items, excluded, kept, strict=True):
        fit = [item >= 2 and bool(eligible[item]) and item not in banned for item in row]
        assert said.tolist() == [
            ok and item not in row[:place] for place, (item, ok) in enumerate(zip(row, fit, strict=True))
        ]
