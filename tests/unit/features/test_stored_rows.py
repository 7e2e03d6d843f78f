"""The bytes of a stored row give back what was written, to requests and to writers."""

from __future__ import annotations

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.id_hashes import id_hashes
from features.store_records import History, merge
from features.stored_rows import read_record, read_row, write_row

QUICK = settings(max_examples=60, deadline=None)
IDS = st.sampled_from(["a", "日本語", "x" * 50, 'quote " and \\', "\x00"])
EVENTS = st.lists(st.tuples(IDS, st.none() | st.floats(-9, 9), st.none() | st.integers(0, 5).map(float)), max_size=6)


def columns(events) -> list[list]:
    return [list(column) for column in zip(*events, strict=True)] if events else [[], [], []]


def row_of(live=(), base=(), **features) -> dict:
    return {
        "user_id": "ann é",
        "features": features,
        "base": columns(base),
        "live": columns(live),
        "updated_at_s": 5.0,
        "touched_at_s": 7.5,
        "loaded_at_s": None,
    }


@QUICK
@given(EVENTS, EVENTS, st.integers(1, 9), st.integers(1, 9))
def test_a_row_is_read_as_it_was_written(live, base, limit, read_limit):
    row = row_of(live, base, city="Oslo", tags=["x"])
    raw = write_row(row, limit)
    assert read_row(raw) == row
    record, touched_at_s = read_record(raw, read_limit)
    expected = merge(History(*row["live"]), History(*row["base"]), min(limit, read_limit))
    assert (record.user_id, record.features, record.updated_at_s) == ("ann é", row["features"], 5.0)
    assert touched_at_s == 7.5
    assert record.history() == expected and record.items == tuple(expected.items)
    assert np.array_equal(record.item_hashes, id_hashes(expected.items))
    assert [None if np.isnan(value) else value for value in record.values] == expected.values


@QUICK
@given(EVENTS, EVENTS, st.integers(1, 9))
def test_a_row_of_an_earlier_version_is_read_alike(live, base, limit):
    row = row_of(live, base, age=3)
    earlier, now = orjson.dumps(row), write_row(row, limit)
    assert read_row(earlier) == read_row(now)
    (old, old_touched), (new, new_touched) = read_record(earlier, limit), read_record(now, limit)
    assert np.array_equal(old.item_hashes, new.item_hashes)
    assert np.array_equal(old.values, new.values, equal_nan=True)
    assert (old.user_id, old.features, old.updated_at_s, old.items) == (
        new.user_id, new.features, new.updated_at_s, new.items,
    )  # fmt: skip
    assert old_touched == new_touched


@pytest.mark.parametrize("length", range(9))
def test_arrays_are_aligned_whatever_the_lengths_around_them(length):
    record, _ = read_record(write_row(row_of([("a", 1.0, 1.0)] * 3, note="x" * length), 9), 9)
    assert record.item_hashes.flags.aligned and record.values.flags.aligned
