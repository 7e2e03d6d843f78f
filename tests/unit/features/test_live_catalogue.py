"""A catalogue with changes answers as one built anew from the items as they are now."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from configs.errors import InvalidRequest
from features import live_catalogue
from features.catalogue import Catalogue
from features.encoding import FIRST_KNOWN, UNKNOWN, Encoder
from features.id_hashes import id_hashes
from features.item_changes import ItemState
from features.live_catalogue import LiveCatalogue

FILTERS = ['"x" in genre', "price >= 3", 'brand == "b1"', 'id == "n1"', "not (price < 3)"]


class Feed:
    """States as `ItemChanges` would give them."""

    def __init__(self):
        self.slots: dict[str, int] = {}
        self.version = 0

    def __call__(self, item_id: str, deleted: bool = False, **fields) -> ItemState:
        self.version += 1
        slot = self.slots.setdefault(item_id, len(self.slots))
        return ItemState(item_id, slot, self.version, deleted, fields)


@pytest.fixture
def encoder(dataset):
    return Encoder.fit(dataset.schema, dataset.users, dataset.items)


@pytest.fixture(params=[live_catalogue.FOLD_ABOVE, 0])
def live(request, dataset, encoder, monkeypatch):
    """Kept apart, or folded into base rows after each step."""
    monkeypatch.setattr(live_catalogue, "FOLD_ABOVE", request.param)
    return LiveCatalogue(Catalogue(dataset.items, encoder), encoder, lambda name, work: work())


def anew(dataset, items: pa.Table) -> Catalogue:
    return Catalogue(items, Encoder.fit(dataset.schema, dataset.users, items))


def matching(catalogue, ids: list[str], found: np.ndarray) -> set[str]:
    return {item_id for item_id in ids if found[catalogue.index(item_id)]}


def test_filters_metadata_and_eligibility_are_those_of_the_items_as_they_are_now(dataset, live):
    feed = Feed()
    live.apply([feed("n1", genre=["x"], price=3.5, brand="b1", title="New"), feed("i2", price=9.0)])
    live.apply([feed("i1", hidden=True), feed("n2", brand="b9"), feed("i4", deleted=True)])
    live.apply([feed("n2", brand="b1", expires_at_s=50.0)])
    rows = {row["item_id"]: row for row in dataset.items.to_pylist()}
    rows["n1"] = {"genre": ["x"], "price": 3.5, "brand": "b1", "title": "New"}
    rows["i2"] |= {"price": 9.0}
    rows["i1"] |= {"hidden": True}
    rows["n2"] = {"brand": "b1", "expires_at_s": 50.0}
    del rows["i4"]
    schema = dataset.items.schema.append(pa.field("hidden", pa.bool_())).append(pa.field("expires_at_s", pa.float64()))
    fresh = anew(dataset, pa.Table.from_pylist([{**row, "item_id": i} for i, row in rows.items()], schema=schema))
    ids = list(rows)
    for expression in FILTERS:
        assert matching(live, ids, live.mask(expression)) == matching(fresh, ids, fresh.mask(expression)), expression
    for now_s in (40.0, 60.0):
        assert matching(live, ids, live.eligible(now_s)) == matching(fresh, ids, fresh.eligible(now_s))
        assert np.count_nonzero(live.eligible(now_s)) == np.count_nonzero(fresh.eligible(now_s))
    places, fresh_places = (np.array([c.index(i) for i in ids]) for c in (live, fresh))
    assert live.metadata(places) == fresh.metadata(fresh_places) and live.ids(places) == ids
    for field in ("brand", "genre"):
        ours, theirs = live.codes(field)[places], fresh.codes(field)[fresh_places]
        ours, theirs = ours.reshape(len(ids), -1), theirs.reshape(len(ids), -1)
        values = [[{v for v in row if v} for row in codes.tolist()] for codes in (ours, theirs)]
        shared = [[[len(a & b) for b in column] for a in column] for column in values]
        assert shared[0] == shared[1]


def test_indices_stay_are_unique_and_are_never_given_to_another(live):
    feed = Feed()
    live.apply([feed("n1"), feed("n2"), feed("i1", price=2.0)])
    before = {item_id: live.index(item_id) for item_id in ("i1", "i5", "n1", "n2")}
    assert len(set(before.values())) == 4 and before["i1"] == FIRST_KNOWN
    assert min(before["n1"], before["n2"]) >= live.trained_rows
    live.apply([feed("n1", deleted=True), feed("n3")])
    assert live.index("n1") == UNKNOWN and live.index("n3") not in before.values()
    live.apply([feed("n1", title="back")])
    assert {item_id: live.index(item_id) for item_id in before} == before


def test_a_deleted_item_is_not_eligible_until_it_is_sent_anew(live):
    feed = Feed()
    place = live.index("i1")
    live.apply([feed("i1", deleted=True)])
    assert not live.eligible(0.0)[place] and not live.mask("price < 9")[place]
    live.apply([feed("i1")])
    assert live.eligible(0.0)[place] and live.metadata([place]) == [
        {"title": "One", "genre": ["x"], "price": 1, "brand": "b1"}
    ]


def test_a_history_finds_new_items_by_their_hash(live, encoder):
    live.apply([Feed()("n1")])
    found = encoder.items_by_hash.rows(id_hashes(["i1", "n1", "nobody"]))
    assert found.tolist() == [live.index("i1"), live.index("n1"), UNKNOWN]


def test_listeners_are_told_what_is_there_encoded_and_what_is_gone(live, encoder):
    class Listener:
        def __init__(self):
            self.told = []

        def hear(self, changed):
            self.told.append(changed)

    listener, feed = Listener(), Feed()
    live.subscribe(listener.hear)
    live.apply([feed("n1", price=4.0, brand="b2"), feed("i2", price=7.0), feed("i3", deleted=True)])
    [changed] = listener.told
    assert changed.indices.tolist() == [live.index("n1"), live.index("i2")]
    assert changed.items.cat[:, 0].tolist() == [UNKNOWN, live.index("i2")]
    assert changed.gone.tolist() == [FIRST_KNOWN + 2]
    whole = pa.table({"item_id": ["n1"], "price": [4.0], "brand": ["b2"]})
    assert np.array_equal(changed.items.num[0], encoder.encode_items(whole).num[0])
    del listener
    live.apply([feed("i3")])


def test_a_listener_that_fails_keeps_nobody_else_from_hearing(live, caplog):
    class Fails:
        def hear(self, changed):
            raise RuntimeError("broken")

    fails = Fails()
    live.subscribe(fails.hear)
    live.apply([Feed()("n1")])
    assert live.version == 1 and "not applied everywhere" in caplog.text


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("colour", "red", "known fields: .*'hidden'"),
        ("item_id", "x", "no such field"),
        ("price", "cheap", "no double"),
        ("genre", "x", "no list"),
        ("hidden", "yes", "no bool"),
        ("title", 3, "no string"),
    ],
)
def test_a_value_that_no_item_can_have_is_refused_by_field(live, name, value, said):
    with pytest.raises(InvalidRequest, match=said):
        live.check(name, value)
    live.check("price", 3)
    live.check("price", None)
    live.check("genre", ["a", "b"])


def test_states_that_suit_another_release_do_not_stop_the_rest(live):
    feed = Feed()
    live.apply([feed("n1", price="cheap", brand="b1", colour="red"), feed("n2", price=3.0)])
    assert live.metadata([live.index("n1"), live.index("n2")]) == [{"brand": "b1"}, {"price": 3}]
