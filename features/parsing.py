"""Columns of raw cells to ids, numbers, times, flags, tokens and lists, whole columns at a time.

Each parser takes an Arrow column of any plain type and gives the parsed values with a mask of the
cells it could not read. A missing cell is not a wrong one.
"""

# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions at import, where a type checker cannot see them.

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from configs.errors import DataError

MAX_ID_LENGTH = 1024
"""Characters of an id. Ingest, stores and requests share this bound, so what one of them takes all do."""
MISSING = ("", "\\N", "null", "NULL", "nan", "NaN", "N/A")
"""Cells that mean no value, in any feature column. Ids and titles are taken literally."""
MISSING_NUMBER = (*MISSING, "NA", "None", "none", "-", "?")
"""The same among numbers, where a country code such as NA cannot be meant."""
NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?$"
ISO_TIME = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}([ T][0-9]{2}:[0-9]{2}(:[0-9]{2}(\.[0-9]{1,6})?)?)?$"
ZONE = r" ?(Z|z|[+-][0-9]{2}(:?[0-9]{2})?)$"
UNITS = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}
TRUE, FALSE = ("true", "t", "yes", "y", "1"), ("false", "f", "no", "n", "0")

Column: TypeAlias = "pa.Array | pa.ChunkedArray"


def plain(column: Column, name: str) -> pa.Array:
    """One array of a string, integer, float, bool, temporal or list-of-string type.

    Raises:
        DataError: the column holds structures; names it.
    """
    array = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    array = pa.concat_arrays(array.chunks) if isinstance(array, pa.ChunkedArray) else array
    kind = array.type
    if pt.is_dictionary(kind):
        return plain(array.cast(kind.value_type), name)
    if pt.is_null(kind) or pt.is_large_string(kind) or pt.is_string_view(kind) or pt.is_binary(kind):
        return _cast(array, pa.string(), name)
    if pt.is_decimal(kind) or pt.is_float16(kind):
        return _cast(array, pa.float64(), name)
    if pt.is_list(kind) or pt.is_large_list(kind) or pt.is_fixed_size_list(kind):
        return _cast(array, pa.list_(pa.string()), name)
    if pt.is_string(kind) or pt.is_integer(kind) or pt.is_floating(kind) or pt.is_boolean(kind):
        return array
    if pt.is_timestamp(kind) or pt.is_date(kind):
        return array
    raise DataError(f"column {name!r} holds {kind}, which is not a feature; flatten it or declare it as ignore")


def ids(column: Column, name: str) -> tuple[pa.Array, np.ndarray]:
    """Ids as strings; missing ones and those above `MAX_ID_LENGTH` are wrong. 7 and 7.0 give "7"."""
    text = tokens(column, name, missing=("",))
    length = pc.fill_null(pc.utf8_length(text), 0).to_numpy(zero_copy_only=False)
    return text, (length == 0) | (length > MAX_ID_LENGTH)


def tokens(column: Column, name: str, missing: tuple[str, ...] = MISSING) -> pa.Array:
    """Cells as strings, null where missing; whole numbers have no decimal point, flags are true and false."""
    array = plain(column, name)
    if pt.is_floating(array.type):
        array = pc.if_else(pc.is_finite(array), array, None)
        whole = pc.and_(pc.equal(array, pc.trunc(array)), pc.less(pc.abs(array), 2.0**53))
        integer = pc.if_else(whole, array, None).cast(pa.int64()).cast(pa.string())
        return pc.coalesce(integer, array.cast(pa.string()))
    if not pt.is_string(array.type):
        return _cast(array, pa.string(), name)
    return pc.if_else(pc.is_in(array, pa.array(missing, pa.string())), pa.scalar(None, pa.string()), array)


def numbers(column: Column, name: str) -> tuple[np.ndarray, np.ndarray]:
    """[n] float64 with NaN where missing, and the mask of cells that are no finite number."""
    array = plain(column, name)
    if pt.is_temporal(array.type):
        return times(array, name)
    if not pt.is_string(array.type):
        values = _cast(array, pa.float64(), name).to_numpy(zero_copy_only=False).copy()
        wrong = np.isinf(values)
    else:
        text = pc.utf8_trim_whitespace(array)
        readable = pc.fill_null(pc.match_substring_regex(text, NUMBER), False)
        values = _float_array(pc.if_else(readable, text, None))
        absent = pc.or_(pc.is_null(text), pc.is_in(text, pa.array(MISSING_NUMBER)))
        wrong = np.isinf(values) | ~_mask(pc.or_(readable, absent))
    values[wrong] = np.nan
    return values, wrong


def times(column: Column, name: str, unit: str = "auto") -> tuple[np.ndarray, np.ndarray]:
    """[n] float64 seconds since 1970 UTC with NaN where missing, and the mask of unreadable cells.

    Text may be a number or ISO 8601; without a zone it is UTC. ``auto`` takes the unit of numbers
    from the median's size: above 1e17 nanoseconds, 1e14 microseconds, 1e11 milliseconds.
    """
    array = plain(column, name)
    if pt.is_temporal(array.type):
        zone = getattr(array.type, "tz", None)
        micros = array.cast(pa.timestamp("us", zone), safe=False).cast(pa.int64())
        return _float_array(micros) / 1e6, np.zeros(len(array), bool)
    values, wrong = numbers(array, name)
    known = values[np.isfinite(values)]
    values /= UNITS[_unit(known) if unit == "auto" else unit]
    if wrong.any() and pt.is_string(array.type):
        rows = np.flatnonzero(wrong)
        values[rows] = _iso_seconds(array.take(pa.array(rows)))
        wrong[rows] = np.isnan(values[rows])
    return values, wrong


def flags(column: Column, name: str) -> tuple[pa.Array, np.ndarray]:
    """Booleans with null where missing, and the mask of cells that are neither true nor false."""
    text = pc.utf8_lower(pc.utf8_trim_whitespace(tokens(column, name)))
    yes, no = pc.is_in(text, pa.array(TRUE)), pc.is_in(text, pa.array(FALSE))
    values = pc.if_else(pc.or_(yes, no), yes, pa.scalar(None, pa.bool_()))
    return values, _mask(pc.and_(pc.is_valid(text), pc.is_null(values)))


def lists(column: Column, name: str, separator: str) -> pa.Array:
    """Multi-valued cells as lists of trimmed, non-empty strings; null where missing."""
    array = plain(column, name)
    if pt.is_list(array.type):
        return array
    text = tokens(array, name)
    split = pc.utf8_split_whitespace(text) if separator == " " else pc.split_pattern(text, separator)
    parents = pc.list_parent_indices(split)
    parts = pc.utf8_trim_whitespace(split.flatten())
    filled = pc.not_equal(parts, "")
    parts, parents = parts.filter(filled), parents.filter(filled).to_numpy(zero_copy_only=False)
    counts = np.bincount(parents, minlength=len(text)) if len(text) else np.zeros(0, np.int64)
    offsets = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), parts, mask=pc.is_null(text))


def _unit(known: np.ndarray) -> str:
    size = float(np.median(np.abs(known))) if len(known) else 0.0
    return "ns" if size >= 1e17 else "us" if size >= 1e14 else "ms" if size >= 1e11 else "s"


def _iso_seconds(text: pa.Array) -> np.ndarray:
    """[n] float64 seconds, NaN where the cell is no ISO 8601 time."""
    text = pc.utf8_trim_whitespace(text)
    zoned = pc.match_substring_regex(text, f"[0-9T:]{ZONE}")
    # A bare date such as 2024-01-05 ends in what looks like a zone.
    zoned = pc.and_(zoned, pc.match_substring(text, ":"))
    local = pc.if_else(zoned, pc.replace_substring_regex(text, ZONE, ""), text)
    plausible = pc.fill_null(pc.match_substring_regex(local, ISO_TIME), False)
    seconds = _float_array(_timestamps(pc.if_else(plausible, local, None)).cast(pa.int64())) / 1e6
    suffix = pc.if_else(zoned, text, None).to_pylist() if pc.any(zoned).as_py() else []
    if suffix:
        offsets = {value: _offset_s(value) for value in {s[-6:] for s in suffix if s}}
        seconds -= np.array([offsets[s[-6:]] if s else 0 for s in suffix], np.float64)
    return seconds


def _offset_s(ending: str) -> int:
    """Seconds east of UTC in the last six characters of a zoned time."""
    sign = max(ending.rfind("+"), ending.rfind("-"))
    if ending[-1] in "Zz" or sign < 0:
        return 0
    digits = ending[sign + 1 :].replace(":", "").ljust(4, "0")
    seconds = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return -seconds if ending[sign] == "-" else seconds


def _timestamps(text: pa.Array) -> pa.Array:
    """Plausible times cast; where one is not a date of the calendar, halve until it stands alone as null."""
    kind = pa.timestamp("us")
    try:
        return text.cast(kind)
    except pa.ArrowInvalid:
        if len(text) == 1:
            return pa.nulls(1, kind)
        half = len(text) // 2
        return pa.concat_arrays([_timestamps(text[:half]), _timestamps(text[half:])])


def _float_array(array: pa.Array) -> np.ndarray:
    return array.cast(pa.float64(), safe=False).to_numpy(zero_copy_only=False).copy()


def _mask(array: pa.Array) -> np.ndarray:
    return array.to_numpy(zero_copy_only=False).astype(bool)


def _cast(array: pa.Array, kind: pa.DataType, name: str) -> pa.Array:
    try:
        return array.cast(kind, safe=not pt.is_floating(kind))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise DataError(f"column {name!r} holds {array.type}, which cannot be read as {kind} ({error})") from error
