"""The features stage gives each request its own user's profile and history, whoever shares the batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from configs.settings import StoreSettings
from features.store import UserEvent, open_store
from serving.hydration import Hydrator
from serving.preparation import Row

NOW_S = 1_000_000.0
QUICK = settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


def ids(*numbers: int) -> list[str]:
    return [f"item/{n} é" for n in numbers]


@pytest.fixture
def hydrator(make_release, store):
    return Hydrator(store, make_release().encoder, StoreSettings(), None)


async def test_history_and_seen_are_the_known_items_of_the_user(hydrator, store):
    store.add("u1", [*ids(4), "withdrawn", *ids(2)])
    hydrated = await hydrator.hydrate([Row(0.0, user_id="u1"), Row(0.0, user_id="nobody"), Row(0.0)], NOW_S)
    assert hydrated.users.history.tolist() == [[6, 4], [0, 0], [0, 0]]
    assert hydrated.users.signal.tolist() == [[2, 2], [0, 0], [0, 0]]
    assert [seen.tolist() for seen in hydrated.seen] == [[6, 4], [], []]


async def test_seeds_stand_in_front_as_liked_and_do_not_count_as_seen(hydrator, store):
    store.add("u1", ids(4))
    row = Row(0.0, user_id="u1", seeds=np.array([9, 8], np.int32))
    hydrated = await hydrator.hydrate([row], NOW_S)
    assert hydrated.users.history.tolist() == [[9, 8, 6]] and hydrated.users.signal.tolist() == [[2, 2, 2]]
    assert hydrated.seen[0].tolist() == [6]


async def test_the_request_s_own_fields_come_before_the_stored_ones(hydrator, store, make_release):
    store.add("u1", [], gender="F", age=20.0)
    row = Row(0.0, user_id="u1", features={"gender": "M"})
    users = (await hydrator.hydrate([row], NOW_S)).users
    told = make_release().encoder.encode_users([{"user_id": "u1", "gender": "M", "age": 20.0}])
    assert np.array_equal(users.cat, told.cat) and np.array_equal(users.num, told.num)
    assert row.profile == {"gender": "M", "age": 20.0}


@QUICK
@given(st.lists(st.tuples(st.sampled_from(["u1", "u2", "u3", None]), st.booleans()), min_size=1, max_size=6))
async def test_a_row_does_not_depend_on_its_batch(hydrator, store, rows):
    store.add("u1", ids(*range(20)), gender="F")
    store.add("u2", [], age=30.0)

    def asked() -> list[Row]:
        seeds = np.array([5], np.int32)
        return [Row(0.0, user_id=user, seeds=seeds if seeded else seeds[:0]) for user, seeded in rows]

    together = await hydrator.hydrate(asked(), NOW_S)
    for place, row in enumerate(asked()):
        alone = await hydrator.hydrate([row], NOW_S)
        width = alone.users.history.shape[1]
        for part in ("cat", "num"):
            assert np.array_equal(getattr(alone.users, part)[0], getattr(together.users, part)[place])
        assert np.array_equal(alone.users.history[0], together.users.history[place, :width])
        assert not together.users.history[place, width:].any()
        assert np.array_equal(alone.seen[0], together.seen[place])


async def test_what_was_recorded_is_in_the_next_batch(make_release, tmp_path):
    store = open_store(StoreSettings(), tmp_path / "store")
    hydrator = Hydrator(store, make_release().encoder, StoreSettings(), None)
    store.record("u1", [UserEvent(ids(3)[0], value=5.0), UserEvent(ids(7)[0], value=1.0)])
    hydrated = await hydrator.hydrate([Row(0.0, user_id="u1")], NOW_S)
    assert hydrated.users.history.tolist() == [[9, 5]] and hydrated.users.signal.tolist() == [[1, 2]]
    assert hydrated.seen[0].tolist() == [9, 5]
    store.record("u1", [UserEvent(ids(0)[0])])
    assert (await hydrator.hydrate([Row(0.0, user_id="u1")], NOW_S)).seen[0].tolist() == [2, 9, 5]
    store.close()
