"""Changes of items are kept durably, in order, and every reader gets to the same last state."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from configs.errors import Unavailable
from features.item_changes import ItemChange, ItemChanges


@pytest.fixture
def open_(tmp_path):
    opened = []

    def open_() -> ItemChanges:
        opened.append(ItemChanges(tmp_path / "items" / "c.sqlite"))
        return opened[-1]

    yield open_
    for changes in opened:
        changes.close()


def test_fields_add_up_and_a_deleted_item_begins_anew_at_its_own_slot(open_):
    changes = open_()
    changes.apply([ItemChange("a", {"x": 1, "y": 2}), ItemChange("b"), ItemChange("a", {"y": None})])
    a = next(state for state in changes.after(0) if state.item_id == "a")
    assert (a.slot, a.deleted, a.fields) == (0, False, {"x": 1, "y": None})
    changes.apply([ItemChange("a", delete=True)])
    assert changes.after(0)[-1].deleted and changes.after(0)[-1].fields == {}
    changes.apply([ItemChange("a", {"z": 1}), ItemChange("c")])
    assert [(state.item_id, state.slot) for state in changes.after(0)] == [("b", 1), ("a", 0), ("c", 2)]


def test_a_reader_who_asks_for_what_is_newer_misses_nothing(open_):
    writer, reader = open_(), open_()
    seen, version = {}, 0
    for turn in range(30):
        writer.apply([ItemChange(f"i{turn % 7}", {"turn": turn}), ItemChange(f"i{turn % 3}", {"also": turn})])
        if turn % 4 == 0:
            for state in reader.after(version, limit=2):
                seen[state.item_id], version = dict(state.fields), state.version
    while states := reader.after(version, limit=2):
        for state in states:
            seen[state.item_id], version = dict(state.fields), state.version
    assert seen == {state.item_id: state.fields for state in open_().after(0)}


def test_writers_at_once_get_slots_and_versions_of_their_own(open_):
    writers = [open_() for _ in range(3)]
    with ThreadPoolExecutor(3) as pool:
        list(pool.map(lambda n: writers[n % 3].apply([ItemChange(f"i{n}"), ItemChange("shared", {"n": n})]), range(30)))
    states = open_().after(0)
    assert sorted(state.slot for state in states) == list(range(31))
    assert len({state.version for state in states}) == 31 and states[-1].version == 60


def test_a_file_that_is_none_is_unavailable(tmp_path):
    (tmp_path / "x").write_bytes(b"not a database, but long enough to be read as one" * 9)
    with pytest.raises(Unavailable, match="item changes"):
        ItemChanges(tmp_path / "x")
