"""A small world, settings in a scratch folder, and the cut of its training."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pytest
import torch

from configs.settings import Settings, build_settings
from features.datasets import Dataset
from features.schema import FeatureField, FeatureSchema, HistorySpec
from serving.works.finetune import FinetuneWork
from serving.works.options import FinetuneOptions, Grouping

USERS, ITEMS = 24, 20
CUT = Grouping(tower_users=10, tower_items=8, fine_groups=1, coarse_groups=2, valid_groups=3, piece_elements=8_192)
"""Several of each kind of unit in a step."""


def dataset(extra: int = 0) -> Dataset:
    """Users like items of their own parity; ``extra`` more users and items stand before the others."""
    rng = np.random.default_rng(0)
    users = [f"new{n}" for n in range(extra)] + [f"u{n}" for n in range(USERS)]
    items = [f"fresh{n}" for n in range(extra)] + [f"i{n}" for n in range(ITEMS)]
    pairs = [(u, i) for u in range(len(users)) for i in rng.permutation(len(items))[:12]]
    ratings = [5.0 if (u + i) % 2 == 0 else 2.0 for u, i in pairs]
    interactions = pa.table(
        {
            "user_id": [users[u] for u, _ in pairs],
            "item_id": [items[i] for _, i in pairs],
            "value": pa.array(ratings, pa.float32()),
            "time_s": rng.permutation(len(pairs)).astype(float),
        }
    )
    fields = (
        FeatureField(name="city", entity="user", kind="categorical"),
        FeatureField(name="age", entity="user", kind="numeric"),
        FeatureField(name="maker", entity="item", kind="categorical"),
        FeatureField(name="genres", entity="item", kind="multi", max_values=2),
    )
    people = pa.table(
        {"user_id": users, "city": [f"c{len(u) % 3}" for u in users], "age": [20.0 + n for n in range(len(users))]}
    )
    things = pa.table(
        {
            "item_id": items,
            "maker": [f"m{n % 3}" for n in range(len(items))],
            "genres": [[f"g{n % 2}", f"g{2 + n % 3}"] for n in range(len(items))],
        }
    )
    schema = FeatureSchema(fields=fields, history=HistorySpec(length=8, positive_at=4.0))
    return Dataset("tiny", schema, interactions, people, things)


def make_settings(home: Path) -> Settings:
    return build_settings({"home": home, "dataset": "tiny"})


def make_finetune(home: Path, place: str = "work", data: Dataset | None = None, **options) -> FinetuneWork:
    chosen = FinetuneOptions(**{"epochs": 1, "grouping": CUT, **options})
    return FinetuneWork(data or dataset(), make_settings(home), chosen, home / place)


def run(work) -> None:
    while work.step(1_000):
        pass


def files(folder: Path) -> dict[str, bytes]:
    """Contents by name, of all but the manifest, which has the time in it."""
    found = (path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json")
    return {str(path.relative_to(folder)): path.read_bytes() for path in found}


@pytest.fixture(scope="session")
def world() -> ModuleType:
    """This module."""
    return sys.modules[__name__]


@pytest.fixture(scope="session", autouse=True)
def one_thread():
    torch.set_num_threads(1)
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def trained(home) -> FinetuneWork:
    """Run to its end without interruption; its release is published as version 1."""
    work = make_finetune(home)
    run(work)
    assert work.result()["version"] == "1"
    return work


@pytest.fixture(scope="session")
def expected(trained, home) -> dict[str, bytes]:
    """What the uninterrupted fine-tune wrote."""
    return files(home / "releases" / "tiny" / "1")
