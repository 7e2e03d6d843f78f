"""Cells of any plain type become ids, numbers, times, flags and lists; wrong ones are marked, not guessed."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import DataError
from features import parsing

MOMENTS = st.datetimes(datetime(1900, 1, 1), datetime(2200, 1, 1))
ZONES = st.integers(-14 * 60, 14 * 60).map(lambda minutes: timezone(timedelta(minutes=minutes)))


@given(st.lists(st.tuples(MOMENTS, ZONES), min_size=1, max_size=5), st.sampled_from("T "))
def test_iso_times_with_zones_agree_with_the_standard_library(moments, joiner):
    stamped = [moment.replace(tzinfo=zone) for moment, zone in moments]
    seconds, wrong = parsing.times(pa.array([s.isoformat(joiner) for s in stamped]), "t")
    assert not wrong.any()
    assert seconds == pytest.approx([s.timestamp() for s in stamped], abs=1e-5)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2024-02-29", 1709164800.0),
        ("2024-02-29T00:00", 1709164800.0),
        ("2024-02-29 00:00:01.5Z", 1709164801.5),
        ("2024-02-29T02:00:00+0200", 1709164800.0),
        ("2024-02-29T02:00:00 +02", 1709164800.0),
        ("1709164800", 1709164800.0),
        (" 1709164800.25 ", 1709164800.25),
    ],
)
def test_spellings_of_a_moment(text, seconds):
    values, wrong = parsing.times(pa.array([text]), "t")
    assert not wrong.any() and values[0] == pytest.approx(seconds)


def test_impossible_dates_and_words_are_marked_and_the_others_read():
    cells = ["2024-01-05", "2023-02-29", "soon", None, "", "2024-13-01T00:00:00Z", "1704412800"]
    values, wrong = parsing.times(pa.array(cells), "t")
    assert wrong.tolist() == [False, True, True, False, False, True, False]
    assert values[[0, 6]].tolist() == [1704412800.0, 1704412800.0]
    assert np.isnan(values[1:6]).all()


@pytest.mark.parametrize(("factor", "unit"), [(1, "s"), (1e3, "ms"), (1e6, "us"), (1e9, "ns")])
def test_the_unit_of_numeric_times_is_told_from_their_size(factor, unit):
    cells = pa.array([int(1.7e9 * factor), int(1.6e9 * factor)])
    for chosen in ("auto", unit):
        assert parsing.times(cells, "t", chosen)[0].tolist() == pytest.approx([1.7e9, 1.6e9])


def test_typed_times_are_read_in_their_zone():
    moment = datetime(2024, 1, 5, 12, tzinfo=timezone(timedelta(hours=3)))
    for column in (
        pa.array([moment], pa.timestamp("ns", "Europe/Oslo")),
        pa.array([datetime(2024, 1, 5, 9)], pa.timestamp("s")),
    ):
        assert parsing.times(column, "t")[0].tolist() == [moment.timestamp()]


@given(st.lists(st.none() | st.floats(allow_nan=False, allow_infinity=False), max_size=8))
def test_printed_numbers_are_read_back_exactly(numbers):
    cells = pa.array([None if n is None else repr(n) for n in numbers], pa.string())
    values, wrong = parsing.numbers(cells, "x")
    assert not wrong.any()
    assert [None if np.isnan(v) else v for v in values] == numbers


@pytest.mark.parametrize("cell", ["abc", "1,5", "0x10", "inf", "-inf", "1e999", "1 2", "--1", "１２"])
def test_what_is_no_finite_number_is_marked(cell):
    values, wrong = parsing.numbers(pa.array([cell, "1"]), "x")
    assert wrong.tolist() == [True, False] and np.isnan(values[0])


@pytest.mark.parametrize("cell", ["", "NA", "nan", "NULL", "\\N", " ", None])
def test_spellings_of_nothing_are_missing_and_not_wrong(cell):
    values, wrong = parsing.numbers(pa.array([cell, "1"]), "x")
    assert not wrong.any() and np.isnan(values[0])


@pytest.mark.parametrize(
    "column",
    [
        pa.array([7, 8]),
        pa.array([7.0, 8.0]),
        pa.array([7, 8], pa.uint64()),
        pa.array(["7", "8"]).dictionary_encode(),
        pa.array(["7", "8"], pa.large_string()),
        pa.array([b"7", b"8"]),
        pa.chunked_array([["7"], ["8"]]),
    ],
)
def test_ids_of_any_type_become_strings(column):
    ids, wrong = parsing.ids(column, "id")
    assert ids.to_pylist() == ["7", "8"] and not wrong.any()


def test_ids_are_taken_literally_and_bounded_in_characters():
    cells = ["NULL", " a ", "a/b c", "日本", "é" * 1024, "é" * 1025, "", None]
    ids, wrong = parsing.ids(pa.array(cells), "id")
    assert ids.to_pylist()[:6] == cells[:6]
    assert wrong.tolist() == [False] * 5 + [True] * 3


def test_lists_split_trim_and_keep_missing_apart_from_empty():
    found = parsing.lists(pa.array(["a| b |", None, "|", "c", "NaN"]), "g", "|").to_pylist()
    assert found == [["a", "b"], None, [], ["c"], None]
    assert parsing.lists(pa.array(["x  y z"]), "g", " ").to_pylist() == [["x", "y", "z"]]
    assert parsing.lists(pa.array([["x"], None]), "g", ",").to_pylist() == [["x"], None]


def test_flags_are_read_in_their_usual_spellings():
    values, wrong = parsing.flags(pa.array(["true", "0", "Yes", None, "maybe"]), "hidden")
    assert values.to_pylist() == [True, False, True, None, None]
    assert wrong.tolist() == [False] * 4 + [True]
    assert parsing.flags(pa.array([True, None]), "hidden")[0].to_pylist() == [True, None]


def test_a_column_of_structures_is_refused_by_name():
    with pytest.raises(DataError, match="'blob'"):
        parsing.plain(pa.array([{"a": 1}]), "blob")
