"""Columns that a filter expression can question, and the answers as masks.

Answers follow three-valued logic: a row says yes, no, or neither when its value is missing, so that
neither a comparison nor its negation matches a missing value. Text is kept as distinct values and
codes; a question is asked once per distinct value.
"""

# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions at import, where a type checker cannot see them.

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from features import parsing

Literal = str | float | int | bool

ORDER: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq, "!=": operator.ne,
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
TEXT_ORDER: dict[str, Callable[[Any, Any], Any]] = {
    "==": pc.equal, "!=": pc.not_equal,
    "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip


class Mismatch(Exception):
    """The column cannot be asked this; the text says what to ask instead."""


class Answer(NamedTuple):
    """yes, no [n] bool; never both, neither where the value is missing."""

    yes: np.ndarray
    no: np.ndarray


class FilterColumn(Protocol):
    """What a filter may ask of one column of n rows."""

    @property
    def known(self) -> np.ndarray:
        """[n] bool, False where the value is missing."""
        ...

    def compare(self, symbol: str, literal: Literal) -> Answer:
        """``column <symbol> literal``."""
        ...

    def among(self, literals: Sequence[Literal]) -> Answer:
        """``column in [...]``."""
        ...

    def holds(self, literal: Literal) -> Answer:
        """``literal in column``."""
        ...

    def truth(self) -> Answer:
        """The column on its own."""
        ...


class NumberColumn:
    """Numbers [n] float64, NaN where missing."""

    def __init__(self, values: np.ndarray):
        self.values = values
        self.known = np.isfinite(values)

    def compare(self, symbol: str, literal: Literal) -> Answer:
        return self._answer(ORDER[symbol](self.values, _number(literal)))

    def among(self, literals: Sequence[Literal]) -> Answer:
        return self._answer(np.isin(self.values, [_number(literal) for literal in literals]))

    def holds(self, literal: Literal) -> Answer:
        raise Mismatch("holds numbers; compare it with ==, <, > or use `field in [...]`")

    def truth(self) -> Answer:
        raise Mismatch("holds numbers; compare it with a number")

    def _answer(self, yes: np.ndarray) -> Answer:
        return Answer(yes & self.known, ~yes & self.known)


class TextColumn:
    """Strings as distinct values [d] and codes [n] int32, -1 where missing. Flags are "true" and "false"."""

    def __init__(self, distinct: pa.Array, codes: np.ndarray):
        self.distinct, self.codes = distinct, codes
        self.known = codes >= 0

    def compare(self, symbol: str, literal: Literal) -> Answer:
        return self._lift(*self.ask(symbol, literal))

    def among(self, literals: Sequence[Literal]) -> Answer:
        yes = np.zeros(len(self.distinct), bool)
        for literal in literals:
            yes |= self.ask("==", literal, strict=False)[0]
        return self._lift(yes, np.ones(len(yes), bool))

    def holds(self, literal: Literal) -> Answer:
        if not isinstance(literal, str):
            raise Mismatch(f'holds text; look for text in it, for example "{literal}" in quotes')
        yes = pc.match_substring(self.distinct, literal)
        return self._lift(_flags(yes), np.ones(len(self.distinct), bool))

    def truth(self) -> Answer:
        if not _flags(pc.is_in(self.distinct, pa.array(["true", "false"]))).all():
            raise Mismatch('holds text; compare it with a string, for example field == "value"')
        return self.compare("==", True)

    def ask(self, symbol: str, literal: Literal, strict: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """The answer of each distinct value: yes [d] bool and known [d] bool.

        A number is held against the values that read as numbers.

        Raises:
            Mismatch: ``strict`` and the literal is a number but no value reads as one.
        """
        if isinstance(literal, bool):
            if symbol not in ("==", "!="):
                raise Mismatch("can be compared with True and False by == and != only")
            literal = "true" if literal else "false"
        if isinstance(literal, str):
            yes = TEXT_ORDER[symbol](self.distinct, pa.scalar(literal, pa.string()))
            return _flags(yes), np.ones(len(self.distinct), bool)
        numbers = self._numbers
        if strict and len(numbers) and np.isnan(numbers).all():
            raise Mismatch("holds text; compare it with a string in quotes")
        known = np.isfinite(numbers)
        return ORDER[symbol](numbers, _number(literal)) & known, known

    @cached_property
    def _numbers(self) -> np.ndarray:
        return parsing.numbers(self.distinct, "")[0]

    def _lift(self, yes: np.ndarray, known: np.ndarray) -> Answer:
        """From distinct values to rows; code -1 reads the last place, which is False."""
        return Answer(np.append(yes & known, False)[self.codes], np.append(~yes & known, False)[self.codes])


class MultiColumn:
    """Lists of strings: one code per value, the row each value belongs to, and which rows have a list."""

    def __init__(self, values: TextColumn, rows: np.ndarray, known: np.ndarray):
        self.values, self.rows, self.known = values, rows, known

    def compare(self, symbol: str, literal: Literal) -> Answer:
        raise Mismatch('holds several values; use "value" in field')

    def among(self, literals: Sequence[Literal]) -> Answer:
        return self._any(self.values.among(literals).yes)

    def holds(self, literal: Literal) -> Answer:
        return self._any(self.values.among([literal]).yes)

    def truth(self) -> Answer:
        raise Mismatch('holds several values; use "value" in field')

    def _any(self, of_values: np.ndarray) -> Answer:
        yes = np.zeros(len(self.known), bool)
        yes[self.rows[of_values]] = True
        return Answer(yes & self.known, ~yes & self.known)


def filter_column(column: pa.Array | pa.ChunkedArray, name: str) -> FilterColumn:
    """Make any plain column askable; raises DataError for a column of structures."""
    array = parsing.plain(column, name)
    if pt.is_list(array.type):
        rows = pc.list_parent_indices(array).to_numpy(zero_copy_only=False)
        return MultiColumn(text_column(array.flatten()), rows, _flags(pc.is_valid(array)))
    if pt.is_temporal(array.type):
        return NumberColumn(parsing.times(array, name)[0])
    if pt.is_string(array.type) or pt.is_boolean(array.type):
        return text_column(array.cast(pa.string()))
    return NumberColumn(parsing.numbers(array, name)[0])


def text_column(array: pa.Array) -> TextColumn:
    encoded = pc.dictionary_encode(array)
    return TextColumn(encoded.dictionary, pc.fill_null(encoded.indices, -1).to_numpy(zero_copy_only=False))


def _number(literal: Literal) -> float:
    if isinstance(literal, bool | str):
        raise Mismatch(f"holds numbers; {literal!r} is none, write a number without quotes")
    try:
        return float(literal)
    except OverflowError:
        raise Mismatch("cannot be compared with a number this large") from None


def _flags(array: pa.Array) -> np.ndarray:
    return pc.fill_null(array, False).to_numpy(zero_copy_only=False).astype(bool)
