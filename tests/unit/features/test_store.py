"""Both feature stores keep one contract: read-your-writes, order, bounds, expiry and repeatable loads."""

from __future__ import annotations

import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import ConfigError, InvalidRequest, Unavailable
from configs.settings import StoreSettings
from features import store_embedded
from features.datasets import Dataset
from features.encoding import Encoder
from features.store import UserEvent, open_store
from features.store_records import History, merge

ODD_IDS = ["a/b c", "日本語", "x" * 1024, "x" * 1023 + "y", "😀" * 1024, "../..", "null", " ", "\x00", "i" * 481]


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(params=["embedded", "redis"])
def make(request, tmp_path):
    """Open stores of one kind; all with the same name share their rows."""
    opened = []

    def settings_(**options) -> StoreSettings:
        if request.param == "redis":
            options |= {"redis_url": request.getfixturevalue("redis_url"), "timeout_ms": 5000}
        return StoreSettings(kind=request.param, **options)

    def open_(name: str | None = None, clock=time.time, **options):
        opened.append(open_store(settings_(**options), tmp_path / (name or request.node.name)))
        opened[-1]._clock = clock
        return opened[-1]

    yield open_
    for store in opened:
        store.close()


def test_an_unknown_user_is_none_among_known_ones(make):
    store = make()
    store.put("ann", {"city": "Oslo"})
    found = store.fetch(["bob", "ann", "bob"])
    assert [row and row.user_id for row in found] == [None, "ann", None]
    assert found[1].features == {"city": "Oslo"} and found[1].items == ()
    assert store.fetch([]) == []


def test_what_was_recorded_is_read_at_once_newest_first(make):
    store = make(clock=Clock())
    store.record("ann", [UserEvent("i1", 5.0, 10.0), UserEvent("i2", None, 20.0)])
    store.record("ann", [UserEvent("i3")])
    row = store.fetch(["ann"])[0]
    assert row.items == ("i3", "i2", "i1")
    assert row.history().times_s == [1000.0, 20.0, 10.0]
    assert math.isnan(row.values[0]) and math.isnan(row.values[1]) and row.values[2] == 5.0


def test_a_late_event_takes_its_place_in_time(make):
    store = make()
    store.record("ann", [UserEvent("new", time_s=30.0)])
    store.record("ann", [UserEvent("old", time_s=10.0)])
    assert store.fetch(["ann"])[0].items == ("new", "old")


def test_profile_and_history_are_written_apart(make):
    clock = Clock()
    store = make(clock=clock)
    store.record("ann", [UserEvent("i1")])
    clock.now_s = 2000.0
    store.put("ann", {"age": 3})
    clock.now_s = 3000.0
    store.record("ann", [UserEvent("i2")])
    row = store.fetch(["ann"])[0]
    assert row.features == {"age": 3} and row.items == ("i2", "i1")
    assert row.updated_at_s == 2000.0
    assert row.is_stale(2600.0, 500) and not row.is_stale(2400.0, 500) and not row.is_stale(9e9, None)


@pytest.mark.parametrize("user_id", ODD_IDS)
def test_any_id_up_to_the_bound_is_its_own_user(make, user_id):
    store = make("ids")
    for place, other in enumerate(ODD_IDS):
        store.record(other, [UserEvent(f"i{place}", time_s=1.0)])
    row = store.fetch([user_id])[0]
    assert row.user_id == user_id and row.items == (f"i{ODD_IDS.index(user_id)}",)


@pytest.mark.parametrize("user_id", ["", "x" * 1025, "\ud800"])
def test_impossible_ids_are_refused(make, user_id):
    with pytest.raises(InvalidRequest):
        make().fetch([user_id])


def test_impossible_events_and_features_are_refused_by_position(make):
    store = make()
    for event, said in [
        (UserEvent(""), r"events\[1\].item_id has 0 characters"),
        (UserEvent("x" * 1025), r"events\[1\].item_id has 1025 characters"),
        (UserEvent("\ud800"), r"events\[1\].item_id .* is not valid Unicode"),
        (UserEvent("i", float("nan")), r"events\[1\].value is nan"),
        (UserEvent("i", 1.0, float("inf")), r"events\[1\].time_s is inf"),
    ]:
        with pytest.raises(InvalidRequest, match=said):
            store.record("ann", [UserEvent("fine"), event])
    with pytest.raises(InvalidRequest, match="plain JSON"):
        store.put("ann", {"x": object()})
    assert store.fetch(["ann"]) == [None]


def test_history_is_bounded_and_the_newest_stay(make):
    store = make(history_limit=3)
    for place in range(5):
        store.record("ann", [UserEvent(f"i{place}", time_s=float(place))])
    assert store.fetch(["ann"])[0].items == ("i4", "i3", "i2")


def test_a_load_brings_profiles_and_histories_in_time_order(make, dataset):
    store, shares = make(), []
    assert store.load(dataset, shares.append) == 3 and shares[-1] == 1.0
    ann, bob, cy = store.fetch(["ann", "bob", "cy"])
    assert ann.history().columns() == [["i1", "i3", "i2"], [5.0, 3.0, 2.0], [30.0, 20.0, 10.0]]
    assert ann.values.tolist() == [5.0, 3.0, 2.0]
    assert ann.features == {"city": "Oslo", "age": 30.0, "tags": ["a", "b"]}
    assert bob.features == {} and bob.items == ("i3",) and cy.items == ()


def test_a_stored_profile_is_encoded_as_in_training(make, dataset):
    store = make()
    store.load(dataset)
    encoder = Encoder.fit(dataset.schema, dataset.users, dataset.items)
    offline = encoder.encode_users(dataset.users.to_pylist())
    rows = store.fetch(["ann", "bob", "cy"])
    online = encoder.encode_users([{**row.features, "user_id": row.user_id} for row in rows])
    for part in ("cat", "num", "multi"):
        assert (getattr(online, part) == getattr(offline, part)).all()


def test_loading_again_doubles_nothing_and_keeps_live_events(make, dataset):
    store = make()
    store.load(dataset)
    store.record("ann", [UserEvent("live", time_s=99.0)])
    store.load(dataset)
    assert store.fetch(["ann"])[0].items == ("live", "i1", "i3", "i2")


def test_a_load_that_holds_what_was_recorded_live_counts_it_once(make, dataset):
    store = make()
    store.record("ann", [UserEvent("i1", 5.0, 30.0)])
    store.load(dataset)
    assert store.fetch(["ann"])[0].items == ("i1", "i3", "i2")


def without(dataset: Dataset, *gone: str) -> Dataset:
    tables = [
        table.filter(pc.invert(pc.is_in(table["user_id"], pa.array(gone))))
        for table in (dataset.interactions, dataset.users)
    ]
    return Dataset(dataset.name, dataset.schema, *tables, dataset.items)


def test_a_load_drops_those_whom_only_an_earlier_load_brought(make, dataset):
    """Kept are who acted since, whose profile was put since, and who was never in a dataset."""
    store, other = make(), make("another")
    other.load(dataset)
    store.load(dataset)
    store.record("ann", [UserEvent("live", time_s=99.0)])
    store.put("cy", {"city": "Rome"})
    store.put("eve", {})
    store.load(without(dataset, "ann", "bob", "cy"))
    ann, bob, cy, eve = store.fetch(["ann", "bob", "cy", "eve"])
    assert ann.items == ("live", "i1", "i3", "i2") and bob is None
    assert cy.features == {"city": "Rome"} and eve is not None
    assert None not in other.fetch(["ann", "bob", "cy"])
    assert store.load(dataset) == 3 and store.fetch(["bob"])[0].items == ("i3",)


def test_a_namespace_that_looks_like_a_pattern_touches_no_other(make, dataset):
    matched, pattern = make("m1"), make("m[0-9]*")
    for store in (matched, pattern):
        store.load(dataset)
    pattern.load(without(dataset, "bob"))
    assert pattern.fetch(["bob"]) == [None] and matched.fetch(["bob"])[0] is not None


def test_a_load_purges_expired_rows_whatever_their_number(tmp_path, dataset, monkeypatch):
    monkeypatch.setattr(store_embedded, "SWEEP_BATCH", 3)
    clock = Clock()
    store = store_embedded.EmbeddedStore(StoreSettings(ttl_s=100), tmp_path / "s", clock)
    for place in range(10):
        store.record(f"old{place}", [UserEvent("i")])
    clock.now_s += 101
    store.record("new", [UserEvent("i")])
    store.load(dataset)
    # Turned back, the clock would show rows that were only hidden.
    clock.now_s -= 101
    found = store.fetch([*(f"old{place}" for place in range(10)), "new", "ann", "bob", "cy"])
    assert [row is not None for row in found] == [False] * 10 + [True] * 4
    store.close()


def test_a_redis_url_without_a_scheme_is_refused_with_the_remedy_and_without_its_password():
    for url in ("localhost:6379", ":secret@localhost:6379", "http://:secret@localhost"):
        with pytest.raises(ConfigError, match=r"store.redis_url.*localhost.*redis://HOST") as caught:
            open_store(StoreSettings(kind="redis", redis_url=url), Path("d"))
        assert "secret" not in caught.value.message


def test_without_times_the_order_of_rows_is_history(make, dataset):
    bare = dataset.interactions.set_column(3, "time_s", pa.nulls(4, pa.float64()))
    store = make()
    store.load(type(dataset)("d", dataset.schema, bare, dataset.users, dataset.items))
    assert store.fetch(["ann"])[0].items == ("i3", "i2", "i1")
    store.record("ann", [UserEvent("now")])
    assert store.fetch(["ann"])[0].items == ("now", "i3", "i2", "i1")


def test_an_untouched_row_expires(make):
    """The clock of a server cannot be turned, so this waits for the one row and touches the other all the while."""
    store, touches = make(ttl_s=0.8), 0
    store.put("bob", {})
    while store.fetch(["bob"])[0] is not None:
        store.record("ann", [UserEvent(f"i{touches}")])
        touches += 1
        time.sleep(0.02)
    assert touches > 0
    assert store.fetch(["ann"])[0].items[-1] == "i0"


READ_AND_WRITE = """
import sys
from pathlib import Path
from configs.settings import StoreSettings
from features.store import UserEvent, open_store

store = open_store(StoreSettings.model_validate_json(sys.argv[1]), Path(sys.argv[2]))
print(store.fetch(["ann"])[0].items)
store.record("ann", [UserEvent("theirs", time_s=2.0)])
store.close()
"""


def test_two_processes_read_each_others_writes_at_once(run_python, tmp_path):
    """Of an embedded store: to a server, every connection is another process."""
    ours = open_store(StoreSettings(), tmp_path / "shared")
    ours.record("ann", [UserEvent("ours", time_s=1.0)])
    process = run_python(READ_AND_WRITE, StoreSettings().model_dump_json(), str(tmp_path / "shared"))
    assert process.communicate(timeout=60)[0].strip() == "('ours',)"
    assert process.returncode == 0
    assert ours.fetch(["ann"])[0].items == ("theirs", "ours")
    ours.close()


def test_writers_at_the_same_time_lose_nothing(make):
    stores = [make("busy"), make("busy")]

    def write(place: int) -> None:
        stores[place % 2].record("ann", [UserEvent(f"i{place}", time_s=float(place))])

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(60)))
    assert stores[0].fetch(["ann"])[0].items == tuple(f"i{place}" for place in reversed(range(60)))


def test_closing_one_of_two_leaves_the_other_open(make):
    first, second = make("twice"), make("twice")
    first.close()
    first.close()
    second.put("ann", {})
    assert second.fetch(["ann"])[0] is not None


def test_an_embedded_store_survives_being_reopened(tmp_path):
    store = open_store(StoreSettings(), tmp_path / "s")
    store.record("ann", [UserEvent("i1")])
    store.close()
    again = open_store(StoreSettings(), tmp_path / "s")
    assert again.fetch(["ann"])[0].items == ("i1",)
    again.close()


def test_an_unreachable_server_is_unavailable_at_once_and_keeps_its_password():
    settings_ = StoreSettings(kind="redis", redis_url="redis://:secret@127.0.0.1:1/0", timeout_ms=50)
    store = open_store(settings_, Path("d"))
    for call in (lambda: store.fetch(["a"]), lambda: store.put("a", {}), lambda: store.record("a", [UserEvent("i")])):
        started = time.monotonic()
        with pytest.raises(Unavailable, match="127.0.0.1:1") as caught:
            call()
        assert time.monotonic() - started < 10
        assert "secret" not in caught.value.message


def test_an_embedded_store_without_a_folder_to_write_is_unavailable(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(Unavailable, match="file/store"):
        open_store(StoreSettings(), tmp_path / "file" / "store")


EVENTS = st.lists(st.tuples(st.sampled_from("abc"), st.none() | st.integers(0, 5).map(float)), max_size=8)


def _history(rows) -> History:
    return History([item for item, _ in rows], [None] * len(rows), [time for _, time in rows])


@given(EVENTS, EVENTS, st.integers(1, 20))
def test_merging_keeps_every_event_once_in_falling_time(newer, older, limit):
    older = sorted(older, key=lambda row: -(row[1] if row[1] is not None else -1))
    whole, cut = merge(_history(newer), _history(older), 100), merge(_history(newer), _history(older), limit)
    merged = list(zip(whole.items, whole.times_s, strict=True))
    assert set(merged) == set(newer) | set(older)
    assert len(merged) <= len(newer) + len(older)
    times = [time for time in whole.times_s if time is not None]
    assert times == sorted(times, reverse=True)
    assert whole.times_s[: len(times)] == times
    assert cut.items == whole.items[:limit]
