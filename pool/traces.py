"""Traces of demand from CSV: read, repaired where that is safe and said, refused by row where it is not.

    disorder         sorted, told
    duplicates       equal rows count once, told; different counts for one time are refused
    gaps             up to `LONGEST_GAP_S` filled by a straight line, told; longer ones are refused
    uneven times     moved to the nearest step, told; more than a quarter of a step off is refused
    negative counts  refused, as are cells that are no number or no time
    time zones       read as stated, UTC without one; a mixture of both is refused

Rows are numbered as in the file, its header being row 1.
"""

# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions at import, where a type checker cannot see them.

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv

from configs.errors import DataError
from features.parsing import ZONE, numbers, times

LONGEST_GAP_S = 6 * 3_600.0
FURTHEST_OFF = 0.25
"""Of a step, that a time may be off the grid."""
FINER = r"(\.[0-9]{6})[0-9]+"
"""Digits of a second beyond microseconds, which are cut."""
FIRST_ROW = 2


@dataclass(frozen=True)
class CountTrace:
    """Counts on an even grid.

    Attributes:
        start_s: first step, seconds since 1970 UTC.
        counts: of each step, float64 [N], finite, 0 or more.
        repairs: what was changed, a sentence each.
    """

    start_s: float
    step_s: float
    counts: np.ndarray
    repairs: tuple[str, ...]

    @property
    def times_s(self) -> np.ndarray:
        """Beginning of every step, float64 [N] seconds since 1970 UTC."""
        return self.start_s + np.arange(len(self.counts)) * self.step_s


def read_counts(file: Path, time: str = "timestamp", count: str = "value") -> CountTrace:
    """A trace of counts at even times; the step is the most common distance of two rows.

    Raises:
        DataError: the file or a column is missing, or a row is wrong beyond repair; names file, row and remedy.
    """
    table = _table(file, (time, count))
    at_s, repairs = _times(table.column(time), file, time)
    counts = _numbers(table.column(count), file, count)
    rows = np.arange(len(at_s)) + FIRST_ROW
    if (np.diff(at_s) < 0).any():
        repairs.append(f"{int((np.diff(at_s) < 0).sum())} rows were out of order and sorted")
    order = np.argsort(at_s, kind="stable")
    at_s, counts, rows = _without_duplicates(at_s[order], counts[order], rows[order], file, repairs)
    if len(at_s) < 2:
        raise DataError(f"{file}: {len(at_s)} rows with different times; a trace needs at least 2")
    steps = np.round(np.diff(at_s), 6)
    distances, often = np.unique(steps, return_counts=True)
    step_s = float(distances[often.argmax()])
    places = _places(at_s, step_s, rows, file, repairs)
    return CountTrace(float(at_s[0]), step_s, _filled(places, counts, step_s, rows, file, repairs), tuple(repairs))


def read_arrivals(file: Path, time: str = "TIMESTAMP") -> tuple[np.ndarray, tuple[str, ...]]:
    """Times of single requests, ascending float64 [N] seconds since 1970 UTC, and what was repaired.

    Two requests may have the same time.

    Raises:
        DataError: as `read_counts`.
    """
    at_s, repairs = _times(_table(file, (time,)).column(time), file, time)
    unsorted = int((np.diff(at_s) < 0).sum())
    if unsorted:
        repairs.append(f"{unsorted} rows were out of order and sorted")
    return np.sort(at_s), tuple(repairs)


def binned(arrivals_s: np.ndarray, step_s: float) -> CountTrace:
    """Counts of arrivals by step, without the last, which the trace may not fill.

    Args:
        arrivals_s: ascending, [N].
    """
    places = ((arrivals_s - arrivals_s[0]) // step_s).astype(np.int64)
    return CountTrace(float(arrivals_s[0]), step_s, np.bincount(places).astype(np.float64)[:-1], ())


def _table(file: Path, columns: tuple[str, ...]) -> pa.Table:
    """The columns as text."""
    try:
        kept = csv.ConvertOptions(column_types=dict.fromkeys(columns, pa.string()))
        table = csv.read_csv(file, convert_options=kept)
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"{file}: cannot be read as CSV with a header ({error})") from error
    missing = [name for name in columns if name not in table.column_names]
    if missing:
        raise DataError(f"{file}: no column {missing[0]!r}; it has {', '.join(table.column_names)}")
    if not table.num_rows:
        raise DataError(f"{file}: no rows below the header")
    return table.select(list(columns))


def _times(column: pa.ChunkedArray, file: Path, name: str) -> tuple[np.ndarray, list[str]]:
    text = pc.replace_substring_regex(column.combine_chunks(), FINER, r"\1")
    seconds, wrong = times(text, name)
    _refuse(wrong | np.isnan(seconds), column, file, name, "is no time; write ISO 8601, such as 2026-01-31T12:00:00Z")
    zoned = pc.and_(pc.match_substring_regex(text, f"[0-9]{ZONE}"), pc.match_substring(text, ":"))
    zoned = zoned.to_numpy(zero_copy_only=False)
    if zoned.any() and not zoned.all():
        _refuse(~zoned, column, file, name, "states no zone where other rows do; state one everywhere or nowhere")
    return seconds, [] if zoned.all() else ["times without a zone were read as UTC"]


def _numbers(column: pa.ChunkedArray, file: Path, name: str) -> np.ndarray:
    values, wrong = numbers(column, name)
    _refuse(wrong | np.isnan(values), column, file, name, "is no number; a step without a count is left out as a row")
    _refuse(values < 0, column, file, name, "is below 0, which no count can be; correct the row or leave it out")
    return values


def _refuse(wrong: np.ndarray, column: pa.ChunkedArray, file: Path, name: str, remedy: str) -> None:
    if wrong.any():
        row = int(wrong.argmax())
        raise DataError(f"{file} row {row + FIRST_ROW}: {name} {column[row].as_py()!r} {remedy}")


def _without_duplicates(
    at_s: np.ndarray, counts: np.ndarray, rows: np.ndarray, file: Path, repairs: list[str]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    again = np.append(False, np.diff(at_s) == 0)
    differs = again & np.append(False, np.diff(counts) != 0)
    if differs.any():
        place = int(differs.argmax())
        both = f"{counts[place - 1]:g} in row {rows[place - 1]} and {counts[place]:g}"
        raise DataError(f"{file} row {rows[place]}: two counts for one time, {both}; keep one of them")
    if again.any():
        repairs.append(f"{int(again.sum())} rows were there twice and count once")
    return at_s[~again], counts[~again], rows[~again]


def _places(at_s: np.ndarray, step_s: float, rows: np.ndarray, file: Path, repairs: list[str]) -> np.ndarray:
    """Step of each row, [N] int64, rising."""
    exact = (at_s - at_s[0]) / step_s
    places = np.round(exact).astype(np.int64)
    off = np.abs(exact - places)
    wrong = (off > FURTHEST_OFF) | np.append(False, np.diff(places) == 0)
    if wrong.any():
        place = int(wrong.argmax())
        raise DataError(f"{file} row {rows[place]}: its time does not fit steps of {step_s:g} s; make times even")
    if (off > 1e-6).any():
        repairs.append(f"{int((off > 1e-6).sum())} times were moved to the nearest step")
    return places


def _filled(
    places: np.ndarray, counts: np.ndarray, step_s: float, rows: np.ndarray, file: Path, repairs: list[str]
) -> np.ndarray:
    """Counts of every step."""
    missing = np.diff(places) - 1
    if missing.size and missing.max() * step_s > LONGEST_GAP_S:
        place = int(missing.argmax())
        hours = f"{missing[place] * step_s / 3_600:g} hours are missing before it"
        longest = f"gaps above {LONGEST_GAP_S / 3_600:g} hours are not filled; cut the trace there"
        raise DataError(f"{file} row {rows[place + 1]}: {hours}; {longest}")
    if missing.any():
        repairs.append(f"{int(missing.sum())} missing steps in {int((missing > 0).sum())} gaps were filled by a line")
    return np.interp(np.arange(places[-1] + 1), places, counts)
