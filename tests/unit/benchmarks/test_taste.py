"""A planted taste is what its events say, and what is asked for is not among them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from benchmarks.taste import DISLIKED, FIELD, GENRES, ITEMS, LIKED, Taste
from features.datasets import Dataset
from features.schema import ITEM_ID, TIME, USER_ID, VALUE, FeatureSchema


@pytest.fixture(scope="module")
def data() -> Dataset:
    """200 items with about 60 events each, half of them of either genre, and as many with next to none."""
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
    genres = [[GENRES[int(item[1:]) % 2]] for item in ids[ITEM_ID].column(ITEM_ID).to_pylist()]
    items_table = ids[ITEM_ID].append_column(FIELD, pa.array(genres))
    return Dataset("d", FeatureSchema(), pa.table(columns), ids[USER_ID], items_table)


@pytest.fixture(scope="module")
def taste(data) -> Taste:
    return Taste.plant(data, 150)


def test_no_event_names_what_is_asked_for(data, taste):
    met = set(
        zip(data.interactions.column(USER_ID).to_pylist(), data.interactions.column(ITEM_ID).to_pylist(), strict=True)
    )
    met |= {(event["user_id"], event["item_id"]) for event in taste.events()}
    for user in taste.wanted:
        assert taste.wanted[user] and taste.others[user]
        assert not met & {(user, item) for item in (*taste.wanted[user], *taste.others[user])}


def test_one_half_of_the_users_likes_what_the_other_half_dislikes(taste):
    liked = {user: {i for i, v in told.items() if v == LIKED} for user, told in taste.ratings.items()}
    disliked = {user: {i for i, v in told.items() if v == DISLIKED} for user, told in taste.ratings.items()}
    sets = {user: (min(liked[user]) in liked_set(taste), len(liked[user]), len(disliked[user])) for user in liked}
    assert sorted(set(sets.values())) == [(False, ITEMS // 2, ITEMS // 2), (True, ITEMS // 2, ITEMS // 2)]
    assert sum(first for first, _, _ in sets.values()) == 75
    assert all(not liked[user] & disliked[user] for user in liked)


def liked_set(taste: Taste) -> set[str]:
    """The set that those who are asked without events are asked for."""
    return {item for user, items in taste.wanted.items() if user not in taste.ratings for item in items}


def test_both_sets_are_middling_items(taste):
    others = {item for user, items in taste.others.items() if user not in taste.ratings for item in items}
    assert len(liked_set(taste)) == len(others) == ITEMS and not others & liked_set(taste)
    assert {int(item[1:]) for item in liked_set(taste) | others} <= set(range(200))


def test_users_without_events_are_asked_too(taste):
    assert set(taste.changed) <= set(taste.ratings)
    unchanged = set(taste.wanted) - set(taste.changed)
    assert len(unchanged) == len(taste.changed) == 100 and not unchanged & set(taste.ratings)


def test_every_event_has_its_own_id(taste):
    events = taste.events()
    assert len({event["event_id"] for event in events}) == len(events) == 150 * ITEMS
