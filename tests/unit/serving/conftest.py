"""A tiny release in memory and stages whose answers are known by construction."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from configs.settings import RankingSettings, RecallSettings, StoreSettings
from features.catalogue import Catalogue
from features.encoding import FIRST_KNOWN, Encoder
from features.schema import FeatureField, FeatureSchema, HistorySpec
from features.store import UserRecord
from features.store_records import History, user_record
from pool.repository import Manifest
from serving.cascade import Cascade
from serving.hydration import Hydrator
from serving.live import Live, LiveLoader
from serving.release import Release
from serving.types import Candidates

ITEMS = 60
NOW_S = 1_000_000.0


@dataclass
class FakeStore:
    """A store in a dict; ``error`` is raised, ``delay_s`` slept, at each fetch."""

    records: dict[str, UserRecord] = field(default_factory=dict)
    error: Exception | None = None
    delay_s: float = 0.0

    def add(self, user_id: str, items: list[str], updated_at_s: float = NOW_S, **features) -> None:
        history = History(items, [5.0] * len(items), [0.0] * len(items))
        self.records[user_id] = user_record(user_id, features, history, updated_at_s)

    def fetch(self, user_ids):
        if self.delay_s:
            import time

            time.sleep(self.delay_s)
        if self.error:
            raise self.error
        return [self.records.get(user_id) for user_id in user_ids]


@dataclass
class FakeStages:
    """Recall gives items in index order; rank scores an item by its index, so higher indices win."""

    count: int = 40
    failing: dict[str, Exception] = field(default_factory=dict)
    delays_s: dict[str, float] = field(default_factory=dict)
    scores: dict[str, np.ndarray] = field(default_factory=dict)
    queries: list = field(default_factory=list)

    def callers(self):
        return {name: self._caller(name) for name in ("recall", "coarse", "fine")}

    def _caller(self, name):
        async def call(query, timeout_s):
            self.queries.append((name, query))
            await asyncio.sleep(self.delays_s.get(name, 0))
            if name in self.failing:
                raise self.failing[name]
            return self._recall(query) if name == "recall" else self._rank(name, query)

        return call

    def _recall(self, query):
        rows = len(query.excluded)
        items = np.tile(np.arange(FIRST_KNOWN, FIRST_KNOWN + self.count, dtype=np.int32), (rows, 1))
        scores = -np.arange(self.count, dtype=np.float32)
        return Candidates(items, np.tile(scores, (rows, 1)), np.ones(items.shape, np.uint8))

    def _rank(self, name, query):
        table = self.scores.get(name, np.arange(ITEMS + FIRST_KNOWN, dtype=np.float32) / 100)
        assert query.items.shape[1] > 0, "an empty candidate list reached a model"
        return table[query.items][:, :, None]


@pytest.fixture
def store():
    return FakeStore()


@pytest.fixture
def stages():
    return FakeStages()


@pytest.fixture(scope="session")
def schema():
    return FeatureSchema(
        fields=(
            FeatureField(name="gender", entity="user", kind="categorical"),
            FeatureField(name="age", entity="user", kind="numeric"),
            FeatureField(name="hour", entity="context", kind="numeric"),
            FeatureField(name="year", entity="item", kind="numeric"),
            FeatureField(name="genre", entity="item", kind="multi"),
        ),
        history=HistorySpec(length=8, positive_at=4),
    )


@pytest.fixture
def make_release(schema):
    def make(hidden: tuple[int, ...] = (), items: int = ITEMS) -> Release:
        ids = [f"item/{n} é" for n in range(items)]
        table = pa.table(
            {
                "item_id": ids,
                "title": [f"Title {n}" for n in range(items)],
                "year": pa.array([1980 + n for n in range(items)], pa.int64()),
                "genre": [["Drama"] if n % 2 else ["Comedy", "Drama"] for n in range(items)],
                "hidden": [n in hidden for n in range(items)],
            }
        )
        users = pa.table({"user_id": ["u1", "u2"], "gender": ["F", "M"], "age": [20.0, 40.0]})
        encoder = Encoder.fit(schema, users, table)
        manifest = Manifest(
            version="1", created_at_s=NOW_S, dataset="tiny", recipe="test", items=items, users=2,
            objectives=("like",), files={},
        )  # fmt: skip
        vectors = np.zeros((items + FIRST_KNOWN, 4), np.float32)
        popular = np.arange(items + FIRST_KNOWN - 1, FIRST_KNOWN - 1, -1, dtype=np.int32)
        return Release(Path("/nowhere"), manifest, encoder, Catalogue(table, encoder), popular, vectors)

    return make


@pytest.fixture
def make_cascade(make_release, store, stages):
    executor = ThreadPoolExecutor(4)

    def make(release: Release | None = None, stale_after_s: float | None = None, **ranking) -> Cascade:
        release = release or make_release()
        settings = StoreSettings(stale_after_s=stale_after_s, timeout_ms=200)
        return Cascade(
            release,
            stages.callers(),
            Hydrator(store, release.encoder, settings, executor),
            RecallSettings(),
            RankingSettings(**{"weights": {"like": 1.0}, "coarse_keep": 20, **ranking}),
            wall=lambda: NOW_S,
        )

    yield make
    executor.shutdown()


@pytest.fixture
def releases():
    """Releases 1 to 3: stages of each, which a test may break; items that are hidden in it; loads in their order."""
    return {"stages": {version: FakeStages() for version in "123"}, "hidden": {}, "loaded": [], "refused": {}}


@pytest.fixture
def loads(releases, make_release, store, settings, monkeypatch):
    """Let services load these releases, whatever lies on the disk; the test has ``settings`` of its own."""
    executor = ThreadPoolExecutor(2)

    def load(self: LiveLoader, version: str, beside: bool) -> Live:
        if version in releases["refused"]:
            raise releases["refused"][version]
        releases["loaded"].append(version)
        release = make_release(releases["hidden"].get(version, ()))
        release = replace(release, manifest=release.manifest.model_copy(update={"version": version}))
        hydrator = Hydrator(store, release.encoder, settings.store, executor)
        return Live(release, {}, releases["stages"][version].callers(), lambda stage: stage, hydrator, settings)

    monkeypatch.setattr(LiveLoader, "load", load)
    yield
    executor.shutdown()
