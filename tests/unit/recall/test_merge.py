from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recall.merge import SOURCE_NAMES, merge, source_names
from recall.sources import SourceResult


def result(*rows: list[tuple[int, float]]) -> SourceResult:
    width = max(len(row) for row in rows)
    items = np.zeros((len(rows), width), np.int32)
    scores = np.full((len(rows), width), -np.inf, np.float32)
    for r, row in enumerate(rows):
        for c, (item, score) in enumerate(row):
            items[r, c], scores[r, c] = item, score
    return SourceResult.of(items, scores)


one_list = st.lists(st.tuples(st.integers(2, 30), st.floats(-5, 5, width=32)), max_size=12, unique_by=lambda e: e[0])


@given(
    lists=st.dictionaries(st.sampled_from(SOURCE_NAMES), st.tuples(one_list, one_list), min_size=1),
    quota=st.integers(0, 12),
    limit=st.integers(1, 40),
)
def test_nothing_is_lost_nothing_twice_and_provenance_is_true(lists, quota, limit):
    results = {name: result(*(sorted(row, key=lambda e: -e[1]) for row in rows)) for name, rows in lists.items()}
    merged = merge(results, dict.fromkeys(results, quota), limit, rows=2)
    for row in range(2):
        offered: dict[int, set[str]] = {}
        for name, found in results.items():
            for item in found.items[row, :quota]:
                if item:
                    offered.setdefault(int(item), set()).add(name)
        items = [int(i) for i in merged.items[row] if i]
        assert len(items) == len(set(items)) == min(limit, len(offered))
        for place, item in enumerate(items):
            assert set(source_names(int(merged.sources[row, place]))) == offered[item]
        kept = merged.scores[row, : len(items)]
        assert (np.diff(kept) <= 1e-6).all() and np.isfinite(kept).all()


def test_agreement_of_two_sources_beats_one_alone():
    results = {"ann": result([(5, 3.0), (6, 2.9), (7, 0.0)]), "item_to_item": result([(6, 1.0), (8, 0.9), (9, 0.0)])}
    merged = merge(results, {"ann": 3, "item_to_item": 3}, 10)
    assert merged.items[0, 0] == 6
    assert merged.sources[0, 0] == 0b11


def test_a_row_equals_itself_in_a_batch():
    rows = [[(5, 3.0), (6, 1.0)], [(9, 2.0), (7, 1.5), (8, 1.0)], []]
    together = merge({"ann": result(*rows)}, {"ann": 5}, 5)
    alone = merge({"ann": result(rows[1])}, {"ann": 5}, 5)
    np.testing.assert_array_equal(alone.items[0], together.items[1])
    np.testing.assert_array_equal(alone.scores[0], together.scores[1])


def test_no_results_give_empty_rows():
    assert merge({}, {"ann": 3}, 5, rows=4).items.shape == (4, 0)


def test_an_unknown_source_lists_the_known_ones():
    with pytest.raises(ValueError, match="known:.*ann"):
        merge({"other": result([(2, 1.0)])}, {"other": 1}, 1)
