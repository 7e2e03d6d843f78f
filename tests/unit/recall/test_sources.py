from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import ArtifactError
from features.datasets import IndexedInteractions
from features.encoding import UserBatch
from recall.index import AnnIndex
from recall.item_to_item import NeighbourTable
from recall.ranked_lists import RankedLists, first_seen, fresh_lists, popular_lists, segment_column
from recall.sources import AnnSource, ItemToItemSource, ListSource, RecallRequest, failure_of

DIM, ITEMS = 4, 50


def request(rows: int, excluded=None, eligible=None, history=None, segments=None) -> RecallRequest:
    history = np.zeros((rows, 3), np.int32) if history is None else np.array(history, np.int32)
    cat = np.ones((rows, 2), np.int32)
    if segments is not None:
        cat[:, 1] = segments
    users = UserBatch(
        cat,
        np.zeros((rows, 0), np.float32),
        np.zeros((rows, 0, 1), np.int32),
        history,
        np.where(history > 0, 2, 0).astype(np.int8),
    )
    vectors = np.random.default_rng(1).normal(size=(rows, DIM)).astype(np.float32)
    excluded = np.zeros((rows, 0), np.int32) if excluded is None else np.array(excluded, np.int32)
    return RecallRequest(users, vectors, excluded, eligible)


@pytest.fixture(scope="module")
def ann() -> AnnSource:
    vectors = np.random.default_rng(0).normal(size=(ITEMS + 2, DIM)).astype(np.float32)
    return AnnSource(AnnIndex.build(vectors))


def ring() -> ItemToItemSource:
    """Every item's neighbours are the three that follow it."""
    items, weights = np.zeros((ITEMS + 2, 3), np.int32), np.zeros((ITEMS + 2, 3), np.float32)
    for item in range(2, ITEMS + 2):
        items[item] = [(item - 2 + step) % ITEMS + 2 for step in (1, 2, 3)]
        weights[item] = [3.0, 2.0, 1.0]
    return ItemToItemSource(NeighbourTable(items, weights))


def test_excluded_items_do_not_use_up_the_quota(ann):
    best = ann.retrieve(request(2), 10).items
    excluded = best[:, :6]
    found = ann.retrieve(request(2, excluded), 10).items
    assert (found >= 2).all()
    np.testing.assert_array_equal(found[:, :4], best[:, 6:])
    assert not set(found[0]) & set(excluded[0])


def test_each_row_has_its_own_exclusions(ann):
    best = ann.retrieve(request(2), 5).items
    found = ann.retrieve(request(2, [[best[0, 0], 0], [0, 0]]), 5).items
    assert best[0, 0] not in found[0]
    np.testing.assert_array_equal(found[1], best[1])


def test_a_filter_that_keeps_nine_items_finds_all_nine_and_one_that_keeps_none_finds_none(ann):
    eligible = np.zeros((2, ITEMS + 2), bool)
    eligible[0, 5:14] = True
    found = ann.retrieve(request(2, eligible=eligible), 20).items
    assert sorted(found[0][found[0] > 0]) == list(range(5, 14))
    assert not found[1].any()


def test_a_user_vector_that_is_not_finite_is_reported_and_the_other_sources_answer(ann):
    asked = request(2, history=[[4, 0, 0], [9, 0, 0]])
    asked.vectors[0] = np.nan
    near, reached = ann.retrieve(asked, 5), ring().retrieve(asked, 5)
    assert failure_of("ann", near) == [("ann", "non_finite_vector")] and failure_of("item_to_item", reached) == []
    assert not near.items[0].any() and (near.items[1] >= 2).all()
    assert reached.items[0, :3].tolist() == [5, 6, 7]


def test_similar_items_leave_the_seeds_out():
    found = ring().similar(np.array([[4, 5]], np.int32), request(1), 10).items[0]
    assert found[found > 0].tolist() == [6, 7, 8]


def interactions(times=None) -> IndexedInteractions:
    """Segment 2 likes item 3, segment 3 likes item 4; item 5 was liked by all, long ago."""
    users = np.array([2] * 900 + [3] * 900 + [2] * 500 + [3] * 500, np.int32)
    items = np.array([3] * 900 + [4] * 900 + [5] * 1000, np.int32)
    return IndexedInteractions(users, items, np.ones(2800, np.float32), np.full(2800, 2, np.int8), times)


def profiles() -> UserBatch:
    cat = np.array([[0, 1], [1, 1], [2, 2], [3, 3]], np.int32)
    none = np.zeros((4, 1), np.int32)
    return UserBatch(cat, np.zeros((4, 0), np.float32), np.zeros((4, 0, 1), np.int32), none, none.astype(np.int8))


def test_popular_is_by_segment_and_falls_back_to_everyone():
    lists = popular_lists(interactions(), 8, profiles(), 1, 30.0)
    source = ListSource("popular", lists)
    found = source.retrieve(request(4, segments=[2, 3, 1, 77]), 2).items
    assert found[:2, 0].tolist() == [3, 4]
    assert found[2].tolist() == found[3].tolist() and found[2, 0] == 5
    assert lists.overall[0] == 5 and set(lists.overall) == set(range(2, 8))


@given(
    n=st.integers(1, 12),
    excluded=st.lists(st.lists(st.integers(0, 40), min_size=8, max_size=8), min_size=3, max_size=3),
    share=st.floats(0, 1),
    seed=st.integers(0, 99),
)
def test_a_list_answers_with_its_first_usable_items_however_deep_they_lie(n, excluded, share, seed):
    rng = np.random.default_rng(seed)
    listed = np.stack([rng.permutation(np.arange(2, 41)) for _ in range(4)]).astype(np.int32)
    lists = RankedLists(listed, -np.tile(np.arange(39, dtype=np.float32), (4, 1)), column=1)
    asked = request(3, excluded, rng.random((3, 41)) < share, segments=[2, 3, 1])
    found = ListSource("popular", lists).retrieve(asked, n)
    for row, (segment, banned) in enumerate(zip([2, 3, 1], excluded, strict=True)):
        usable = [i for i in listed[segment].tolist() if asked.eligible[row, i] and i not in banned][:n]
        assert found.items[row].tolist() == usable + [0] * (n - len(usable))
        assert np.isfinite(found.scores[row]).sum() == len(usable)


def test_old_events_count_less():
    times = np.concatenate([np.full(1800, 1e9), np.full(1000, 0.0)])
    assert popular_lists(interactions(times), 8, profiles(), 0, 30.0).overall[0] != 5


def test_fresh_prefers_new_items_and_works_without_times():
    rows = interactions()
    assert first_seen(rows, 8) is None
    without = fresh_lists(rows, 8, None)
    assert set(without.overall) == set(range(2, 8))
    dates = np.random.default_rng(0).permutation(1002) * 86_400.0
    dates[[3, 4, 5]] = 0.0
    fresh = fresh_lists(rows, 1002, first_seen(rows, 1002, dates)).overall
    assert fresh.tolist() == (np.argsort(-dates[2:])[:100] + 2).tolist()


def test_lists_come_back_from_disk_and_refuse_another_catalogue(tmp_path):
    lists = popular_lists(interactions(), 8, profiles(), 1, 30.0)
    lists.save(tmp_path / "popular.npz")
    loaded = RankedLists.load(tmp_path / "popular.npz", items=6)
    np.testing.assert_array_equal(loaded.items, lists.items)
    assert loaded.column == 1
    with pytest.raises(ArtifactError, match="past the catalogue"):
        RankedLists.load(tmp_path / "popular.npz", items=3)


def test_the_segment_field_must_exist(data):
    assert segment_column(data.encoder) == 1
    with pytest.raises(ArtifactError, match="known: \\['camp'\\]"):
        segment_column(data.encoder, "planet")
