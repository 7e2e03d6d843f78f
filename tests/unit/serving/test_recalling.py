from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from configs.settings import RecallSettings, SourceSettings
from features.encoding import FIRST_KNOWN
from recall.index import AnnIndex
from recall.pipeline import Recall
from recall.ranked_lists import RankedLists
from recall.sources import AnnSource, ListSource, SourceResult
from serving.recalling import LocalRecall
from serving.types import RecallQuery

DIM = 4
NOTHING = np.zeros((1, 0), np.int32)


class FakeTower:
    """Gives the same vector to everyone, or raises."""

    def __init__(self, vector):
        self.vector = vector

    def run(self, inputs):
        if self.vector is None:
            raise RuntimeError("tower broke")
        return {"user_vector": np.tile(np.float32(self.vector), (len(inputs["history"]), 1))}


class FakeSource:
    """Raises, or hangs until it is released."""

    name = "fresh"
    waits = True

    def __init__(self, error: Exception | None = None, hangs: bool = False):
        self.error, self.released = error, threading.Event()
        if not hangs:
            self.released.set()

    def retrieve(self, request, n):
        self.released.wait(60)
        if self.error:
            raise self.error
        items = np.full((len(request), 1), 3, np.int32)
        return SourceResult.of(items * request.usable(items), np.ones(items.shape, np.float32))


@pytest.fixture
def release(make_release):
    return make_release(hidden=(0,))


@pytest.fixture
def make_stage(release):
    executor, made = ThreadPoolExecutor(4), []

    def make(vector=(1, 0, 0, 0), fresh=None) -> LocalRecall:
        made.append(fresh or FakeSource())
        vectors = np.random.default_rng(0).normal(size=(release.encoder.item_rows, DIM)).astype(np.float32)
        index = AnnIndex.build(vectors)
        lists = RankedLists(np.tile(release.popular, (2, 1)), np.tile(-np.arange(60, dtype=np.float32), (2, 1)))
        sources = {"ann": AnnSource(index), "popular": ListSource("popular", lists), "fresh": made[-1]}
        settings = RecallSettings(sources={name: SourceSettings(quota=20, timeout_ms=100) for name in sources})
        return LocalRecall(FakeTower(vector), Recall(index, sources, lists), release.catalogue, settings, executor)

    yield make
    for source in made:
        source.released.set()
    executor.shutdown()


def query(release, filters=(None,), excluded=NOTHING) -> RecallQuery:
    users = release.encoder.encode_users([{}] * len(filters))
    return RecallQuery("1", users, excluded, filters, 0.0)


def test_all_sources_answer_and_are_known_by_their_bits(make_stage, release):
    found = make_stage()(query(release))
    assert found.failed == ()
    assert np.bitwise_or.reduce(found.sources[0]) == 0b1101  # ann, popular, fresh
    assert (found.items >= FIRST_KNOWN).all()


@pytest.mark.parametrize(
    ("fresh", "reason"), [(FakeSource(error=ValueError("no")), "failed"), (FakeSource(hangs=True), "timeout")]
)
def test_a_source_that_fails_or_is_late_is_named_and_the_others_answer(make_stage, release, fresh, reason):
    started = time.monotonic()
    found = make_stage(fresh=fresh)(query(release))
    assert found.failed == (("fresh", reason),)
    assert found.items.shape[1] >= 20
    assert time.monotonic() - started < 2.5


@pytest.mark.parametrize(
    ("vector", "reason"),
    [(None, "failed"), ((np.nan, 0, 0, 0), "non_finite_vector"), ((np.inf, 0, 0, 0), "non_finite_vector")],
)
def test_without_a_usable_user_vector_the_other_sources_answer(make_stage, release, vector, reason):
    found = make_stage(vector=vector)(query(release))
    assert ("ann", reason) in found.failed
    assert np.isfinite(found.scores).all()
    assert set(found.items[0]) >= set(release.popular[:20])


def test_hidden_excluded_and_filtered_items_are_recalled_by_no_source(make_stage, release):
    excluded = np.array([[61, 60], [0, 0]], np.int32)
    found = make_stage()(query(release, filters=(None, "year >= 2035"), excluded=excluded))
    assert not {2, 60, 61} & set(found.items[0])
    years = {release.catalogue.metadata([i])[0]["year"] for i in found.items[1] if i}
    assert years == set(range(2035, 2040))


def test_recall_says_what_each_of_its_parts_took(make_stage, release):
    found = make_stage()(query(release))
    assert set(found.timings_ms) == {"tower", "ann", "popular", "fresh", "merge"}
    assert all(took_ms >= 0 for took_ms in found.timings_ms.values())
