"""What a feature column is, judged from its cells; conservative, reported and overridable."""

# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions at import, where a type checker cannot see them.

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from features.parsing import Column, lists, numbers, plain, tokens

Kind = Literal["numeric", "categorical", "multi", "metadata", "ignore"]

SEPARATORS = ("|", ";", ",", " ")
FEW = 20
"""With no more distinct values than this a text column is categorical, however few the rows."""
UNIQUE_SHARE = 0.5
"""Above this share of distinct values a text column is a description, not a feature."""
LONGEST_TOKEN = 40
LISTED_SHARE = 0.05
"""Share of cells that must hold a separator before it is believed."""


@dataclass(frozen=True)
class Inferred:
    """A verdict with its reason."""

    kind: Kind
    reason: str
    separator: str | None = None


def infer(column: Column, name: str) -> Inferred:
    """Judge one column. Numbers are numeric unless they carry leading zeros (codes such as zip codes)."""
    array = plain(column, name)
    if array.null_count == len(array):
        return Inferred("metadata", "no values")
    if pt.is_list(array.type):
        return Inferred("multi", "a list column")
    if pt.is_boolean(array.type):
        return Inferred("categorical", "true or false")
    if pt.is_temporal(array.type):
        return Inferred("metadata", "a time")
    if not pt.is_string(array.type):
        return Inferred("numeric", "a number column")
    return _infer_text(array, name)


def _infer_text(array: pa.Array, name: str) -> Inferred:
    text = tokens(array, name).drop_null()
    if not len(text):
        return Inferred("metadata", "no values")
    values, wrong = numbers(array, name)
    if not wrong.any() and not np.isnan(values).all():
        if pc.any(pc.match_substring_regex(text, r"^0[0-9]")).as_py():
            return Inferred("categorical", "numbers with leading zeros are codes")
        return Inferred("numeric", "every value is a number")
    for separator in SEPARATORS:
        if _is_list(text, separator):
            return Inferred("multi", f"values joined by {separator!r}", separator)
    distinct = pc.count_distinct(text).as_py()
    if distinct <= FEW and pc.max(pc.utf8_length(text)).as_py() <= 2 * LONGEST_TOKEN:
        return Inferred("categorical", f"{distinct} distinct values")
    if distinct > UNIQUE_SHARE * len(text) or pc.mean(pc.utf8_length(text)).as_py() > LONGEST_TOKEN:
        return Inferred("metadata", "mostly unique text")
    return Inferred("categorical", f"{distinct} distinct values")


def _is_list(text: pa.Array, separator: str) -> bool:
    """Whether cells look like lists: short parts that recur, and more combinations than parts.

    A bar or semicolon is rare in plain text, so recurring parts are enough there.
    """
    holds = pc.mean(pc.match_substring(text, separator).cast(pa.float64())).as_py()
    if holds < LISTED_SHARE:
        return False
    parts = lists(text, "", separator).flatten()
    distinct = pc.count_distinct(parts).as_py()
    if not distinct or pc.max(pc.utf8_length(parts)).as_py() > LONGEST_TOKEN:
        return False
    recurring = len(parts) / distinct
    if separator in "|;":
        return recurring >= 1.5
    return recurring >= 5 and pc.count_distinct(text).as_py() > 1.2 * distinct


def positive_at(values: np.ndarray) -> tuple[float | None, str]:
    """The value from which an event counts as positive, and the rule that gave it.

    On a scale (at most 100 distinct values): the first value at or above three quarters of the way
    from the lowest to the highest, so 4 of 1..5, 8 of 1..10 and 1 of 0..1. Otherwise the median.
    """
    known = values[np.isfinite(values)]
    distinct = np.unique(known)
    if len(distinct) < 2:
        return None, "no scale of values, so every event is positive"
    if len(distinct) > 100:
        return float(np.median(known)), "the median of the values"
    bound = distinct[0] + 0.75 * (distinct[-1] - distinct[0])
    chosen = float(distinct[distinct >= bound][0])
    return chosen, f"three quarters up the scale {distinct[0]:g}..{distinct[-1]:g}"
