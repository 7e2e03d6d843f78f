"""The hand-written funnel of the peers benchmark gives what the cascade gives, on a small release really trained."""

from __future__ import annotations

import asyncio
import shutil
import time

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.peers.answers import same
from benchmarks.peers.funnel import Config, Funnel
from benchmarks.peers.limit import load_cascade
from configs.settings import build_settings
from features.datasets import Dataset
from features.schema import FeatureField, FeatureSchema, HistorySpec
from features.store import UserEvent, open_store
from pool.repository import CHAMPION, ReleaseRepository
from serving.build import build_release
from serving.preparation import Row

USERS, ITEMS, EVENTS, K = 80, 150, 4_000, 6
QUOTAS = {"ann": 30, "item_to_item": 20, "popular": 15, "fresh": 5}
"""Small, so that every stage has to leave some out."""


def ratings() -> Dataset:
    random = np.random.default_rng(7)
    users, items = random.integers(0, USERS, EVENTS), (ITEMS * random.power(0.5, EVENTS)).astype(int)
    interactions = pa.table(
        {
            "user_id": [f"u{u}" for u in users],
            "item_id": [f"i{i}" for i in items],
            "value": pa.array(random.integers(1, 6, EVENTS), pa.float32()),
            "time_s": pa.array(1e9 + np.sort(random.uniform(0, 1e7, EVENTS)), pa.float64()),
        }
    )
    schema = FeatureSchema(
        fields=(
            FeatureField(name="group", entity="user", kind="categorical"),
            FeatureField(name="genre", entity="item", kind="categorical"),
        ),
        history=HistorySpec(length=60, positive_at=3),
    )
    # The last user is known to the release and has no history.
    profiles = pa.table({"user_id": [f"u{u}" for u in range(USERS + 1)], "group": [f"g{u % 3}" for u in range(81)]})
    catalogue = pa.table({"item_id": [f"i{i}" for i in range(ITEMS)], "genre": [f"c{i % 5}" for i in range(ITEMS)]})
    return Dataset("ratings", schema, interactions, profiles, catalogue)


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    sources = {name: {"quota": quota, "timeout_ms": 10_000} for name, quota in QUOTAS.items()}
    settings = build_settings(
        {
            "home": tmp_path_factory.mktemp("home"),
            "dataset": "ratings",
            "recall": {"candidates": 50, "sources": sources},
            "ranking": {"coarse_keep": 20},
            "serving": {"default_k": K},
        }
    )
    version = build_release(ratings(), settings, "quick")
    ReleaseRepository(settings.releases_folder).point(CHAMPION, version)
    store = open_store(settings.store, settings.store_folder)
    store.load(ratings())
    store.record("u3", [UserEvent("i140", 5.0), UserEvent("i141", 1.0)])
    store.close()
    return settings


@pytest.fixture(scope="module")
def funnel(settings, tmp_path_factory):
    # A store can be open but once in a process, and the cascade opens the original.
    store = shutil.copytree(settings.store_folder, tmp_path_factory.mktemp("copy") / "store")
    release = settings.releases_folder / "1"
    weights = {**settings.ranking.weights}
    return Funnel(Config(str(release), str(store), QUOTAS, weights, candidates=50, coarse_keep=20, k=K, max_batch=8))


@pytest.fixture(scope="module")
def expected(settings):
    """The cascade's answers, one request at a time."""
    cascade, _ = load_cascade(settings)
    users = [*(f"u{u}" for u in range(0, USERS, 2)), "u3", f"u{USERS}"]

    async def ask():
        answers = {}
        for user_id in users:
            (slate,) = await cascade.recommend([Row(deadline_s=time.monotonic() + 60, k=K, user_id=user_id)])
            assert not slate.trace.degraded
            answers[user_id] = (cascade.release.catalogue.ids(slate.items), slate.scores.tolist())
        return answers

    return asyncio.run(ask())


def test_the_hand_written_funnel_answers_as_the_cascade_does(funnel, expected):
    for user_id, answer in expected.items():
        ids, scores = funnel.recommend([user_id])
        assert same(answer, (ids[0], scores[0])), user_id


def test_it_answers_in_batches_what_it_answers_alone(funnel, expected):
    answers = list(zip(*funnel.recommend(list(expected)), strict=True))
    assert all(map(same, expected.values(), answers))


def test_somebody_it_has_never_seen_gets_a_full_slate(funnel):
    ids, scores = funnel.recommend(["nobody"])
    assert len(set(ids[0])) == K and scores[0] == sorted(scores[0], reverse=True)
