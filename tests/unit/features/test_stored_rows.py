"""The bytes of a stored row give back what was written, to requests and to writers."""

from __future__ import annotations

import struct

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.id_hashes import id_hashes
from features.store_records import History, merge
from features.stored_rows import appended, read_record, read_row, touched_at_s, write_row

IDS = st.sampled_from(["a", "日本語", "x" * 50, 'quote " and \\', "\x00"])
EVENTS = st.lists(st.tuples(IDS, st.none() | st.floats(-9, 9), st.none() | st.integers(0, 5).map(float)), max_size=6)


def columns(events) -> list[list]:
    return [list(column) for column in zip(*events, strict=True)] if events else [[], [], []]


def in_order(events) -> list:
    """As stores keep them: by falling time, each once."""
    return list(zip(*merge(History(*columns(events)), History.empty(), 99).columns(), strict=True))


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


@given(EVENTS, EVENTS, EVENTS, st.integers(1, 9))
def test_events_in_front_of_a_row_make_the_row_that_writing_it_anew_would(newer, live, base, limit):
    live, base = in_order(live), in_order(base)
    row, told = row_of(live, base, age=3), [(item, value, 9.0 if time is None else time) for item, value, time in newer]
    whole = merge(History(*columns(told)), History(*row["live"]), limit).columns()
    anew = write_row(row | {"live": whole, "touched_at_s": 8.0}, limit)
    short = appended(write_row(row, limit), History(*columns(told)), 8.0, limit)
    if short is None:  # only where some event is no later than what the row holds
        latest = max((time for _, _, time in [*live, *base] if time is not None), default=-1.0)
        assert not told or min(time for _, _, time in told) <= latest
        return
    assert read_row(short) == read_row(anew) and touched_at_s(short) == 8.0
    (mine, _), (expected, _) = read_record(short, limit), read_record(anew, limit)
    assert mine.history() == expected.history() and np.array_equal(mine.item_hashes, expected.item_hashes)
    assert np.array_equal(mine.values, expected.values, equal_nan=True)


def test_a_row_of_the_format_before_is_read_alike_and_is_written_anew():
    row = row_of([("a", 2.0, 5.0)], [("b", None, 3.0), ("c", 1.0, None)], age=3)
    history = History(["a", "b", "c"], [2.0, None, 1.0], [5.0, 3.0, None])
    profile = orjson.dumps({name: row[name] for name in ("user_id", "features", "updated_at_s", "touched_at_s")})
    rest = orjson.dumps({name: row[name] for name in ("base", "live", "loaded_at_s")})
    head = struct.pack("<4sIQ", b"row2", len(profile), 3)
    raw = b"".join((head, id_hashes(history.items).tobytes(), history.marks().tobytes(), profile, rest))
    assert read_row(raw) == row and touched_at_s(raw) == 7.5
    record, _ = read_record(raw, 9)
    assert record.history() == history and record.features == {"age": 3}
    assert np.array_equal(record.item_hashes, id_hashes(history.items)) and record.values[0] == 2.0
    assert appended(raw, History(["d"], [None], [9.0]), 8.0, 9) is None
