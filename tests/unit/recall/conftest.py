"""A small world: 40 users in two camps, 30 items, profile and item features."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from features.datasets import IndexedInteractions
from features.encoding import Encoder
from features.schema import FeatureField, FeatureSchema, HistorySpec
from recall.pipeline import RecallData

USERS, ITEMS = 40, 30


def make_schema(full: bool) -> FeatureSchema:
    fields = (
        FeatureField(name="camp", entity="user", kind="categorical"),
        FeatureField(name="age", entity="user", kind="numeric"),
        FeatureField(name="tags", entity="user", kind="multi", max_values=3),
        FeatureField(name="hour", entity="context", kind="categorical"),
        FeatureField(name="kind", entity="item", kind="categorical"),
        FeatureField(name="price", entity="item", kind="numeric"),
        FeatureField(name="genres", entity="item", kind="multi", max_values=2),
    )
    return FeatureSchema(fields=fields if full else (), history=HistorySpec(length=12))


def make_data(full: bool = True, timed: bool = True, seed: int = 0) -> RecallData:
    """Users of a camp meet items of their half of the catalogue."""
    rng = np.random.default_rng(seed)
    user_rows = [
        {"user_id": f"u{u}", "camp": "ab"[u % 2], "age": float(20 + u), "tags": ["x", "y"][: 1 + u % 2]}
        for u in range(USERS)
    ]
    item_rows = [
        {"item_id": f"i/{i}", "kind": "ab"[i % 2], "price": float(i), "genres": [f"g{i % 3}"]} for i in range(ITEMS)
    ]
    users, items = pa.Table.from_pylist(user_rows), pa.Table.from_pylist(item_rows)
    encoder = Encoder.fit(make_schema(full), users, items)
    pairs = [(u + 2, 2 * i + u % 2 + 2) for u in range(USERS) for i in rng.permutation(ITEMS // 2)[:8]]
    who, what = (np.array(column, np.int32) for column in zip(*pairs, strict=True))
    times = rng.random(len(who)) * 1e7 if timed else None
    signals = np.where(rng.random(len(who)) < 0.2, 1, 2).astype(np.int8)
    rows = IndexedInteractions(who, what, np.ones(len(who), np.float32), signals, times)
    return RecallData(encoder, encoder.encode_users([{}, {}, *user_rows]), encoder.item_table(items), rows)


@pytest.fixture
def data() -> RecallData:
    return make_data()


@pytest.fixture(scope="session")
def worlds() -> dict[str, RecallData]:
    """One with every kind of field, one with ids alone."""
    return {"full": make_data(), "bare": make_data(full=False, timed=False)}
