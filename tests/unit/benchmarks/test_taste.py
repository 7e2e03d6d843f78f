"""A planted taste is what its events say, and what is asked for is not among them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.taste import ITEMS, OTHERS, Taste
from features.datasets import Dataset
from features.schema import ITEM_ID, TIME, USER_ID, VALUE, FeatureSchema


@pytest.fixture(scope="module")
def data() -> Dataset:
    """200 items with about 60 events each, and as many with next to none."""
    rng = np.random.default_rng(1)
    items = np.concatenate([rng.integers(0, 200, 12_000), rng.integers(200, 400, 400)])
    users = rng.integers(0, 300, len(items))
    columns = {
        USER_ID: pa.array([f"u{n}" for n in users]),
        ITEM_ID: pa.array([f"i{n}" for n in items]),
        VALUE: pa.nulls(len(items), pa.float32()),
        TIME: pa.nulls(len(items), pa.float64()),
    }
    ids = {name: pa.table({name: columns[name].unique()}) for name in (USER_ID, ITEM_ID)}
    return Dataset("d", FeatureSchema(), pa.table(columns), ids[USER_ID], ids[ITEM_ID])


def test_no_event_names_what_is_asked_for(data):
    taste = Taste.plant(data, 150)
    met = set(
        zip(data.interactions.column(USER_ID).to_pylist(), data.interactions.column(ITEM_ID).to_pylist(), strict=True)
    )
    met |= {(event["user_id"], event["item_id"]) for event in taste.events()}
    for user in taste.wanted:
        assert taste.wanted[user] and taste.others[user]
        assert not met & {(user, item) for item in (*taste.wanted[user], *taste.others[user])}


def test_changed_users_like_halves_of_one_set_of_middling_items(data):
    taste = Taste.plant(data, 150)
    liked = {item for items in taste.likes.values() for item in items}
    assert len(liked) == ITEMS and all(len(items) == ITEMS // 2 for items in taste.likes.values())
    assert len({tuple(items) for items in taste.likes.values()}) == len(taste.likes) == 150
    others = {item for items in taste.others.values() for item in items}
    assert len(others) == OTHERS and not others & liked
    assert {int(item[1:]) for item in liked | others} <= set(range(200))


def test_users_without_events_are_asked_too(data):
    taste = Taste.plant(data, 150)
    assert set(taste.changed) <= set(taste.likes)
    unchanged = set(taste.wanted) - set(taste.changed)
    assert len(unchanged) == len(taste.changed) == 100 and not unchanged & set(taste.likes)


def test_every_event_has_its_own_id(data):
    events = Taste.plant(data, 150).events()
    assert len({event["event_id"] for event in events}) == len(events) == 150 * ITEMS // 2
