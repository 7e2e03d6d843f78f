"""The caller's filter: a small boolean language over item columns.

    release_year >= 1990 and "Comedy" in genre and not id in ["a", "b"]

==================  =====================================================================
``and or not ( )``  as in Python
``== != < <= > >=`` a field with a literal, chains allowed; numbers kept as text compare as numbers
``in``              field in [literals]; literal in a multi-valued field; text in a text field
``is None``         whether the value is missing; ``is not None`` the opposite
a bare field        true where a flag is true
``field("a b")``    a field whose name is no Python word
==================  =====================================================================

A missing value matches neither a comparison nor its negation. The text is parsed by Python's own
parser and only the nodes above are accepted; nothing is ever executed.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping
from typing import NoReturn

import numpy as np

from configs.errors import InvalidRequest
from features.filter_columns import ORDER, Answer, FilterColumn, Literal, Mismatch

MAX_LENGTH = 1024
MAX_DEPTH = 32
MAX_TERMS = 32
"""Comparisons in one filter; each costs a pass over the catalogue."""
MAX_LIST = 256

SYMBOLS: dict[type[ast.cmpop], str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
}  # fmt: skip
MIRRORED = {"==": "==", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


class FilterExpression:
    """A parsed filter, to be asked of any set of columns.

    Raises:
        InvalidRequest: the text is too long, too deep or not of the language; field ``filter``.
    """

    def __init__(self, text: str):
        self.text = text.strip()
        if not self.text:
            raise InvalidRequest("the filter is empty; leave it out to filter nothing", "filter")
        if len(text) > MAX_LENGTH:
            raise InvalidRequest(f"the filter has {len(text)} characters; at most {MAX_LENGTH} are allowed", "filter")
        self._root = _parse(self.text)
        self._check_bounds()

    def mask(self, columns: Mapping[str, FilterColumn]) -> np.ndarray:
        """Rows that match, [n] bool.

        Raises:
            InvalidRequest: a field is unknown (the known ones are listed) or of another type.
        """
        return self._answer(self._root, columns).yes

    def _answer(self, node: ast.expr, columns: Mapping[str, FilterColumn]) -> Answer:
        if isinstance(node, ast.BoolOp):
            answers = [self._answer(value, columns) for value in node.values]
            return _all(answers) if isinstance(node.op, ast.And) else _negated(_all([_negated(a) for a in answers]))
        if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            return _negated(self._answer(node.operand, columns))
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            return _all([self._compare(*pair, columns) for pair in zip(node.ops, sides, sides[1:], strict=False)])
        if _field_name(node) is None:
            self._refuse(node, "expected a comparison such as field == value")
        return self._ask(node, self._column(node, columns).truth)

    def _compare(self, op: ast.cmpop, left: ast.expr, right: ast.expr, columns: Mapping[str, FilterColumn]) -> Answer:
        if isinstance(op, ast.In | ast.NotIn):
            answer = self._membership(left, right, columns)
            return _negated(answer) if isinstance(op, ast.NotIn) else answer
        if isinstance(op, ast.Is | ast.IsNot):
            return self._missing(isinstance(op, ast.Is), left, right, columns)
        symbol = SYMBOLS[type(op)]
        if _field_name(left) is None and _field_name(right) is not None:
            left, right, symbol = right, left, MIRRORED[symbol]
        column, literal = self._column(left, columns), self._literal(right)
        return self._ask(left, lambda: column.compare(symbol, literal))

    def _membership(self, left: ast.expr, right: ast.expr, columns: Mapping[str, FilterColumn]) -> Answer:
        if isinstance(right, ast.List | ast.Tuple | ast.Set):
            column = self._column(left, columns)
            literals = [self._literal(element) for element in right.elts]
            return self._ask(left, lambda: column.among(literals))
        column, literal = self._column(right, columns), self._literal(left)
        return self._ask(right, lambda: column.holds(literal))

    def _missing(self, wanted: bool, left: ast.expr, right: ast.expr, columns: Mapping[str, FilterColumn]) -> Answer:
        if not (isinstance(right, ast.Constant) and right.value is None):
            self._refuse(right, "`is` asks for None only; use == for values")
        known = self._column(left, columns).known
        return Answer(~known, known) if wanted else Answer(known, ~known)

    def _column(self, node: ast.expr, columns: Mapping[str, FilterColumn]) -> FilterColumn:
        name = _field_name(node)
        if name is None:
            self._refuse(node, "expected a field name; compare a field with a value")
        if name not in columns:
            self._refuse(node, f"unknown field {name!r}; known fields: {sorted(columns)}")
        return columns[name]

    def _literal(self, node: ast.expr) -> Literal:
        negative = isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub)
        inner = node.operand if negative else node  # type: ignore[attr-defined]
        value = inner.value if isinstance(inner, ast.Constant) else None
        if negative and (isinstance(value, bool) or not isinstance(value, int | float)):
            self._refuse(node, "a minus sign stands before a number only")
        if isinstance(value, str) and not _is_utf8(value):
            self._refuse(node, "the text holds half a surrogate pair, which no value can")
        if not isinstance(value, str | int | float):
            self._refuse(node, "expected a string, a number, True or False; use `is None` for missing values")
        return -value if negative else value  # type: ignore[operator]

    def _ask(self, node: ast.expr, question: Callable[[], Answer]) -> Answer:
        try:
            return question()
        except Mismatch as error:
            self._refuse(node, f"{_field_name(node)!r} {error}")

    def _refuse(self, node: ast.expr, reason: str) -> NoReturn:
        raise InvalidRequest(f"filter, {_place(self.text, node.lineno, node.col_offset)}: {reason}", "filter")

    def _check_bounds(self) -> None:
        """Walk without recursion, so that depth cannot hurt before it is measured."""
        terms, level = 0, [(self._root, 1)]
        while level:
            node, depth = level.pop()
            terms += len(node.ops) if isinstance(node, ast.Compare) else 0
            if depth > MAX_DEPTH:
                raise InvalidRequest(f"the filter nests deeper than {MAX_DEPTH} levels; flatten it", "filter")
            if isinstance(node, ast.List | ast.Tuple | ast.Set) and len(node.elts) > MAX_LIST:
                self._refuse(node, f"a list may hold {MAX_LIST} values, this one has {len(node.elts)}")
            level += [(child, depth + 1) for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]
        if terms > MAX_TERMS:
            raise InvalidRequest(f"the filter makes {terms} comparisons; at most {MAX_TERMS} are allowed", "filter")


assert set(SYMBOLS.values()) == set(ORDER)


def _parse(text: str) -> ast.expr:
    try:
        return ast.parse(text, mode="eval").body
    except SyntaxError as error:
        # Python counts characters from 1 here, and gives none where the text ends too soon.
        place = f"line {error.lineno or 1}, " * ("\n" in text) + f"column {error.offset or len(text) + 1}"
        raise InvalidRequest(f"filter, {place}: {error.msg}; write field, operator, value", "filter") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise InvalidRequest(f"the filter cannot be parsed ({error or 'it nests too deep'})", "filter") from None


def _field_name(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "field":
        argument = node.args[0] if len(node.args) == 1 and not node.keywords else None
        if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
            return argument.value
    return None


def _place(text: str, line: int, offset_bytes: int) -> str:
    """Where a node starts, in characters from 1; the parser counts UTF-8 bytes."""
    lines = text.split("\n")
    before = lines[line - 1].encode()[:offset_bytes] if line <= len(lines) else b""
    column = len(before.decode(errors="ignore")) + 1
    return f"line {line}, column {column}" if len(lines) > 1 else f"column {column}"


def _all(answers: list[Answer]) -> Answer:
    return Answer(np.logical_and.reduce([a.yes for a in answers]), np.logical_or.reduce([a.no for a in answers]))


def _negated(answer: Answer) -> Answer:
    return Answer(answer.no, answer.yes)


def _is_utf8(value: str) -> bool:
    return not any("\ud800" <= character <= "\udfff" for character in value)
