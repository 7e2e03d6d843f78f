"""Traces with faults: repaired and told, or refused with the row named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from configs.errors import DataError
from pool.traces import binned, read_arrivals, read_counts

GOOD = ["2026-01-01 00:00:00,5", "2026-01-01 00:30:00,6", "2026-01-01 01:00:00,7", "2026-01-01 01:30:00,8"]


def written(folder: Path, rows: list[str], header: str = "timestamp,value") -> Path:
    file = folder / "trace.csv"
    file.write_text("\n".join([header, *rows, ""]))
    return file


def test_a_good_trace_is_read_as_it_is(tmp_path):
    trace = read_counts(written(tmp_path, GOOD))
    assert trace.counts.tolist() == [5, 6, 7, 8] and trace.step_s == 1_800
    assert trace.times_s[0] == np.datetime64("2026-01-01T00:00:00", "s").astype(int)
    assert trace.repairs == ("times without a zone were read as UTC",)


@pytest.mark.parametrize(
    ("rows", "counts", "told"),
    [
        ([GOOD[1], GOOD[0], *GOOD[2:]], [5, 6, 7, 8], "1 rows were out of order"),
        ([*GOOD[:2], *GOOD[1:]], [5, 6, 7, 8], "1 rows were there twice"),
        ([*GOOD, "2026-01-01 03:00:00,20"], [5, 6, 7, 8, 12, 16, 20], "2 missing steps in 1 gaps"),
        ([*GOOD, "2026-01-01 02:00:30,9"], [5, 6, 7, 8, 9], "1 times were moved"),
    ],
)
def test_what_can_be_repaired_is_and_is_told(rows, counts, told, tmp_path):
    trace = read_counts(written(tmp_path, rows))
    assert trace.counts == pytest.approx(counts)
    assert any(told in repair for repair in trace.repairs), trace.repairs


@pytest.mark.parametrize(
    ("row", "named"),
    [
        ("2026-01-01 02:00:00,-3", "row 6: value '-3' is below 0"),
        ("2026-01-01 02:00:00,many", "row 6: value 'many' is no number"),
        ("2026-01-01 02:00:00,", "row 6: value '' is no number"),
        ("2026-13-01 02:00:00,9", "row 6: timestamp '2026-13-01 02:00:00' is no time"),
        ("2026-01-01 00:30:00,9", "row 6: two counts for one time, 6 in row 3 and 9"),
        ("2026-01-01 02:00:00Z,9", "row 2: timestamp '2026-01-01 00:00:00' states no zone"),
        ("2026-01-01 02:14:00,9", "row 6: its time does not fit steps of 1800 s"),
        ("2026-01-02 02:00:00,9", "row 6: 24 hours are missing before it"),
    ],
)
def test_what_cannot_be_repaired_is_refused_by_row(row, named, tmp_path):
    with pytest.raises(DataError, match="trace.csv") as refused:
        read_counts(written(tmp_path, [*GOOD, row]))
    assert named in refused.value.message


def test_zones_are_kept_apart_over_a_change_of_clocks(tmp_path):
    rows = ["2026-10-25T01:30:00+01:00,1", "2026-10-25T01:00:00+00:00,2", "2026-10-25T01:30:00Z,3"]
    trace = read_counts(written(tmp_path, rows))
    assert trace.counts.tolist() == [1, 2, 3] and trace.repairs == ()


@pytest.mark.parametrize(
    ("header", "rows", "named"),
    [
        ("time,value", GOOD, "no column 'timestamp'"),
        ("timestamp,value", [], "no rows"),
        ("timestamp,value", GOOD[:1], "1 rows"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(header, rows, named, tmp_path):
    with pytest.raises(DataError, match=named):
        read_counts(written(tmp_path, rows, header))


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(DataError, match="nowhere.csv"):
        read_counts(tmp_path / "nowhere.csv")


def test_arrivals_are_sorted_and_counted_by_step(tmp_path):
    rows = [
        "2026-01-01 00:00:00.1234567,1",
        "2026-01-01 00:00:04.5,1",
        "2026-01-01 00:00:01,1",
        "2026-01-01 00:00:07,1",
    ]
    times_s, repairs = read_arrivals(written(tmp_path, rows, "TIMESTAMP,tokens"))
    assert times_s - times_s[0] == pytest.approx([0, 0.876544, 4.376544, 6.876544], abs=1e-5)
    assert "1 rows were out of order and sorted" in repairs
    assert binned(times_s, 2.0).counts.tolist() == [2, 0, 1]  # the last step is not whole
