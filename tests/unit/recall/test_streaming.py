"""An index with changes answers as an exact search over the items as they are now."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recall import streaming
from recall.index import AnnIndex
from recall.index_spec import IndexSpec
from recall.streaming import StreamingIndex

DIM, ITEMS, K = 8, 30, 5
NOBODY = np.zeros(0, np.int32)


def vectors(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((count, DIM)).astype(np.float32)


class Later:
    """Does work when it is told to."""

    def __init__(self):
        self.work = []

    def __call__(self, name, work):
        self.work.append(work)

    def run(self):
        while self.work:
            self.work.pop(0)()


@pytest.fixture
def later(monkeypatch):
    monkeypatch.setattr(streaming, "COMPACT_ABOVE", 6)
    return Later()


def exact(there: dict[int, np.ndarray], queries: np.ndarray, k: int, eligible=None) -> list[list[int]]:
    ids = [i for i in sorted(there) if eligible is None or (i < len(eligible) and eligible[i])]
    scores = queries @ np.array([there[i] for i in ids]).T if ids else np.zeros((len(queries), 0))
    return [[ids[place] for place in np.argsort(-row, kind="stable")[:k]] for row in scores]


def found(neighbours) -> list[list[int]]:
    return [[item for item in row if item] for row in neighbours.items.tolist()]


STEP = st.tuples(
    st.lists(st.integers(2, 45), max_size=5, unique=True),
    st.lists(st.integers(2, 45), max_size=3, unique=True),
    st.booleans(),
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, min_size=1, max_size=8))
def test_searches_are_exact_whatever_came_and_went_and_was_compacted(steps):
    later, base = Later(), vectors(ITEMS + 2, 1)
    index = StreamingIndex(AnnIndex.build(base, IndexSpec("Flat")), later)
    there = {item: base[item] for item in range(2, ITEMS + 2)}
    above, streaming.COMPACT_ABOVE = streaming.COMPACT_ABOVE, 4
    try:
        for turn, (ids, gone, compact) in enumerate(steps):
            gone, put = [item for item in gone if item not in ids], vectors(len(ids), 100 + turn)
            index.apply(np.array(ids, np.int32), put, np.array(gone, np.int32))
            there |= dict(zip(ids, put, strict=True))
            there = {item: vector for item, vector in there.items() if item not in gone}
            if compact:
                later.run()
            queries, eligible = vectors(3, turn), np.random.default_rng(turn).random(40) < 0.6
            assert found(index.search(queries, K)) == exact(there, queries, K)
            assert found(index.search(queries, K, eligible=eligible)) == exact(there, queries, K, eligible)
            among = np.array([3, 7, 11, 33, 44, 60], np.int32)
            mask = np.isin(np.arange(61), among)
            assert found(index.search_among(queries, among, K)) == exact(there, queries, K, mask)
            items, scores = index.scored(queries)
            assert items[0].tolist() == sorted(there) and len(index) == len(there)
            assert np.allclose(scores, queries @ np.array([there[i] for i in sorted(there)]).T, atol=1e-4)
    finally:
        streaming.COMPACT_ABOVE = above


def test_changes_made_while_another_index_is_made_stay(later):
    base = vectors(ITEMS + 2, 1)
    index = StreamingIndex(AnnIndex.build(base, IndexSpec("Flat")), later)
    new = vectors(10, 2)
    index.apply(np.arange(40, 50, dtype=np.int32), new, NOBODY)
    assert later.work and index.beside == 10
    index.apply(np.array([40, 60], np.int32), vectors(2, 3), np.array([41, 2], np.int32))
    later.run()
    assert index.beside == 2
    there = {i: base[i] for i in range(3, ITEMS + 2)} | {40 + n: new[n] for n in range(2, 10)}
    there |= dict(zip((40, 60), vectors(2, 3), strict=True))
    assert found(index.search(vectors(4, 9), K)) == exact(there, vectors(4, 9), K)


def test_a_quantised_index_takes_changes_and_is_trained_anew_after_many(later):
    base = vectors(3_002, 1)
    spec = IndexSpec("IVF20,PQ8x4fs", nprobe=20, refine=8.0)
    index = StreamingIndex(AnnIndex.build(base, spec), later)
    queries, there = vectors(50, 5), {i: base[i] for i in range(2, len(base))}
    for turn in range(3):
        ids, put = np.arange(turn * 400 + 2, turn * 400 + 302, dtype=np.int32), vectors(300, 50 + turn)
        fresh = np.arange(4_000 + turn * 100, 4_100 + turn * 100, dtype=np.int32)
        gone = np.arange(2_500 + turn * 100, 2_550 + turn * 100, dtype=np.int32)
        ids, put = np.concatenate([ids, fresh]), np.concatenate([put, vectors(100, 70 + turn)])
        index.apply(ids, put, gone)
        there |= dict(zip(ids.tolist(), put, strict=True))
        for item in gone.tolist():
            del there[item]
        later.run()
        assert index.beside == 0 and len(index) == len(there)
        answers = found(index.search(queries, 10))
        assert not {item for row in answers for item in row} - set(there)
        fresh = AnnIndex.build(np.concatenate([base[:2], *([there[item]] for item in sorted(there))]), spec)
        names = np.array([0, 0, *sorted(there)])
        anew = names[fresh.search(queries, 10).items].tolist()
        hits, hits_anew = (
            np.mean([len(set(a) & set(b)) for a, b in zip(rows, exact(there, queries, 10), strict=True)])
            for rows in (answers, anew)
        )
        assert hits >= 0.98 * hits_anew


def test_a_query_that_is_no_number_fails_alone(later):
    index = StreamingIndex(AnnIndex.build(vectors(ITEMS + 2, 1), IndexSpec("Flat")), later)
    index.apply(np.array([50], np.int32), vectors(1, 2), NOBODY)
    queries = vectors(2, 3)
    queries[0, 0] = np.nan
    answer = index.search(queries, K)
    assert answer.failed.tolist() == [True, False] and found(answer)[0] == [] and len(found(answer)[1]) == K
