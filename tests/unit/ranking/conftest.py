"""A small world with a known taste, users like items of their own parity, and rankers trained on it."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pytest
import torch

from features.datasets import Dataset, IndexedInteractions
from features.encoding import Encoder
from features.schema import FeatureField, FeatureSchema, HistorySpec
from ranking.coarse import CoarseConfig
from ranking.fine import FineConfig
from ranking.pipeline import RankData, prepare, train_rankers, user_table
from ranking.recipes import LossWeights, Recipe, Schedule

USERS, ITEMS, LENGTH = 30, 24, 12
FIELDS = (
    FeatureField(name="age", entity="user", kind="numeric"),
    FeatureField(name="city", entity="user", kind="categorical"),
    FeatureField(name="tags", entity="user", kind="multi", max_values=3),
    FeatureField(name="year", entity="item", kind="numeric"),
    FeatureField(name="maker", entity="item", kind="categorical"),
    FeatureField(name="genres", entity="item", kind="multi", max_values=3),
)
NAMES = ("engage", "like", "rating")
FINE = FineConfig(NAMES, dim=4, attention=8, heads=2, rank=4, product=8, hidden=(16, 8))
COARSE = CoarseConfig(NAMES, dim=4, vector=8, hidden=16, cross_hidden=4)
SCHEDULE = Schedule(epochs=2, learning_rate=1e-2, warmup_steps=5, group_rows=4, groups=8, negatives=4)
RECIPE = Recipe("test", SCHEDULE, replace(SCHEDULE, distil_weight=1.0), FINE, COARSE, LossWeights(), LENGTH)


def dataset(fields: tuple[FeatureField, ...] = FIELDS, values: bool = True, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    users = pa.table(
        {
            "user_id": [f"u/{n}" for n in range(USERS)],
            "age": rng.integers(18, 80, USERS).astype(float),
            "city": [f"c{n % 4}" for n in range(USERS)],
            "tags": [[f"t{n % 3}", f"t{n % 5}"] for n in range(USERS)],
        }
    )
    items = pa.table(
        {
            "item_id": [f"i {n}" for n in range(ITEMS)],
            "year": rng.integers(1990, 2020, ITEMS).astype(float),
            "maker": [f"m{n % 5}" for n in range(ITEMS)],
            "genres": [[f"g{n % 2}", f"g{2 + n % 3}"] for n in range(ITEMS)],
        }
    )
    pairs = np.array([(u, i) for u in range(USERS) for i in rng.permutation(ITEMS)[:14]])
    likes = (pairs[:, 0] + pairs[:, 1]) % 2 == 0
    ratings = np.where(likes, 5.0, 2.0).astype(np.float32)
    interactions = pa.table(
        {
            "user_id": [f"u/{u}" for u in pairs[:, 0]],
            "item_id": [f"i {i}" for i in pairs[:, 1]],
            "value": pa.array(ratings if values else [None] * len(pairs), pa.float32()),
            "time_s": rng.permutation(len(pairs)).astype(float),
        }
    )
    schema = FeatureSchema(fields=fields, history=HistorySpec(length=LENGTH, positive_at=4.0 if values else None))
    return Dataset("synthetic", schema, interactions, users, items)


def encoded(data: Dataset) -> tuple[Encoder, IndexedInteractions]:
    encoder = Encoder.fit(data.schema, data.users, data.items, data.interactions)
    return encoder, IndexedInteractions.build(data, encoder)


def rank_data(data: Dataset | None = None, view: str = "others") -> RankData:
    data = data or dataset()
    encoder, rows = encoded(data)
    last = np.arange(len(rows)) % 10 == 9
    train, valid = rows.take(np.flatnonzero(~last)), rows.take(np.flatnonzero(last))
    tables = user_table(encoder, data.users), encoder.item_table(data.items)
    return prepare(encoder, *tables, train, valid, view, rows if view == "earlier" else None)


@pytest.fixture(scope="session")
def synthetic() -> ModuleType:
    """This module, for tests that build variants of the world."""
    return sys.modules[__name__]


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def world():
    return dataset()


@pytest.fixture(scope="session")
def data(world):
    return rank_data(world)


@pytest.fixture(scope="session")
def rankers(data):
    return train_rankers(data, RECIPE)


@pytest.fixture(scope="session")
def saved(world, rankers, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("release")
    items = encoded(world)[0].item_table(world.items)
    rankers.fine.save(folder, items)
    rankers.coarse.save(folder, items)
    return folder
