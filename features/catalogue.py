"""All that serving needs to know of items, by item index.

Arrays have one row per item index, [I + 2]; rows 0 (padding) and 1 (unknown) are never eligible and
match no filter. Cached arrays are shared between callers and therefore read-only.
"""

# pyright: reportAttributeAccessIssue=false
# pyarrow.compute makes its functions at import, where a type checker cannot see them.

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from datetime import date, datetime
from functools import lru_cache
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from configs.errors import DataError, InvalidRequest
from features import parsing
from features.encoding import FIRST_KNOWN, Encoder
from features.filter_columns import FilterColumn, filter_column, text_column
from features.filter_expression import FilterExpression
from features.schema import ITEM_ID, RESERVED_ITEM_COLUMNS

MASKS_KEPT = 64
"""Filter masks kept; one takes a byte per item."""
METADATA_KEPT = 100_000
"""Items whose metadata stays ready as a mapping."""


class Catalogue:
    """Items of one release.

    Args:
        items: one row an item, with ``item_id``; rows unknown to the encoder are left out, and an
            item of the encoder without a row has no metadata.
    Raises:
        DataError: an item id appears twice.
    """

    def __init__(self, items: pa.Table, encoder: Encoder):
        self._use(_by_index(items, encoder), encoder.item_ids.values)
        self._encoder = encoder

    @classmethod
    def of_rows(cls, rows: pa.Table) -> Catalogue:
        """From rows in the order of item indices; two blank ones are put in front."""
        made = cls.__new__(cls)
        blank = pa.Table.from_pylist([{}] * FIRST_KNOWN, schema=rows.schema)
        made._use(pa.concat_tables([blank, rows]).combine_chunks(), rows.column(ITEM_ID).to_pylist())
        return made

    def _use(self, table: pa.Table, ids: list[str]) -> None:
        self._ids = ids
        self._table = table
        self._columns = _Columns(self._table)
        self._moments = _Moments(self._table)
        self._masks = lru_cache(MASKS_KEPT)(self._mask)
        self._codes: dict[str, np.ndarray] = {}
        self._metadata: dict[int, dict[str, Any]] = {}

    def snapshot(self) -> Catalogue:
        """What does not change while it is used: this."""
        return self

    def __len__(self) -> int:
        """Rows of every array: items + 2."""
        return len(self._table)

    @property
    def fields(self) -> tuple[str, ...]:
        """Columns that filters and caps may name, besides ``id``."""
        return tuple(name for name in self._table.column_names if name != ITEM_ID)

    def index(self, item_id: str) -> int:
        """The index of an item; that of the unknown item when it is none of the release's."""
        return self._encoder.item_ids.index(item_id)

    def added(self) -> Mapping[str, int]:
        """Indices of items that came after the release: none."""
        return {}

    def ids(self, indices: Sequence[int] | np.ndarray) -> list[str]:
        """External ids of known item indices."""
        return [self._ids[index - FIRST_KNOWN] for index in np.asarray(indices).tolist()]

    def metadata(self, indices: Sequence[int] | np.ndarray) -> list[dict[str, Any]]:
        """Title and raw features of each item, safe for JSON; a missing value has no key."""
        wanted: list[int] = np.asarray(indices).tolist()
        missing = [index for index in dict.fromkeys(wanted) if index not in self._metadata]
        found = dict(zip(missing, self._read_metadata(missing), strict=True)) if missing else {}
        if len(self._metadata) + len(found) <= METADATA_KEPT:
            self._metadata |= found
        return [dict(found[index] if index in found else self._metadata[index]) for index in wanted]

    def eligible(self, now_s: float) -> np.ndarray:
        """Items that may be shown at a moment (seconds since 1970 UTC): [I + 2] bool, read-only.

        An item is shown when it is not ``hidden`` and ``available_from_s <= now_s < expires_at_s``;
        a missing value forbids nothing.
        """
        return self._moments.eligible(now_s)

    def mask(self, expression: str) -> np.ndarray:
        """Items that match a filter: [I + 2] bool, read-only.

        Raises:
            InvalidRequest: the expression is wrong; see `features.filter_expression`.
        """
        return self._masks(expression)

    def codes(self, field: str) -> np.ndarray:
        """Values of a field as integers, equal where the values are.

        [I + 2] int32, or [I + 2, L] for a multi-valued field of at most L values. 0 stands for no
        value; it is not a value that a cap could count.

        Raises:
            InvalidRequest: no such field; lists the known ones.
        """
        if field not in self._table.column_names:
            raise InvalidRequest(f"no item field {field!r}; known fields: {list(self.fields)}", "caps")
        if field not in self._codes:
            self._codes[field] = frozen(_codes(self._table.column(field), field)[0])
        return self._codes[field]

    def code_values(self, field: str) -> dict[str, int]:
        """The code of each value of a field in `codes`; the caller's own."""
        values = _codes(self._table.column(field), field)[1].to_pylist()
        return {value: code for code, value in enumerate(values, 1)}

    @property
    def table(self) -> pa.Table:
        """Raw rows in the order of item indices."""
        return self._table

    def row(self, index: int) -> dict[str, Any]:
        """Raw values of an item."""
        return self._table.slice(index, 1).to_pylist()[0]

    def _mask(self, expression: str) -> np.ndarray:
        mask = FilterExpression(expression).mask(self._columns).copy()
        mask[:FIRST_KNOWN] = False
        return frozen(mask)

    def _read_metadata(self, indices: list[int]) -> list[dict[str, Any]]:
        shown = self._table.select([name for name in self.fields if name not in RESERVED_ITEM_COLUMNS])
        if not shown.num_columns:
            return [{} for _ in indices]
        return [_json_safe(row) for row in shown.take(pa.array(indices, pa.int64())).to_pylist()]


class _Columns(Mapping[str, FilterColumn]):
    """Askable columns, made when first asked; ``id`` and ``item_id`` are the external id."""

    def __init__(self, table: pa.Table):
        self._table = table
        self._made: dict[str, FilterColumn] = {}

    def __getitem__(self, name: str) -> FilterColumn:
        column = ITEM_ID if name == "id" else name
        if column not in self._table.column_names:
            raise KeyError(name)
        if column not in self._made:
            self._made[column] = filter_column(self._table.column(column), column)
        return self._made[column]

    def __contains__(self, name: object) -> bool:
        return name == "id" or name in self._table.column_names

    def __iter__(self) -> Iterator[str]:
        yield from dict.fromkeys(("id", *self._table.column_names))

    def __len__(self) -> int:
        return len(list(iter(self)))


class _Moments:
    """Eligibility over time, computed anew only when some item appears or expires."""

    def __init__(self, table: pa.Table):
        rows = len(table)
        self._shown = np.ones(rows, bool)
        if "hidden" in table.column_names:
            hidden, _ = parsing.flags(table.column("hidden"), "hidden")
            self._shown = ~pc.fill_null(hidden, False).to_numpy(zero_copy_only=False).astype(bool)
        self._shown[:FIRST_KNOWN] = False
        self._from = _seconds(table, "available_from_s", -np.inf)
        self._until = _seconds(table, "expires_at_s", np.inf)
        changes = np.concatenate([self._from, self._until])
        self._changes = np.unique(changes[np.isfinite(changes)])
        self._cached: tuple[int, np.ndarray] | None = None

    def eligible(self, now_s: float) -> np.ndarray:
        # How many changes lie behind tells one unchanging stretch of time from another.
        stretch = int(np.searchsorted(self._changes, now_s, side="right"))
        cached = self._cached
        if cached is None or cached[0] != stretch:
            mask = self._shown & (self._from <= now_s) & (now_s < self._until)
            cached = self._cached = (stretch, frozen(mask))
        return cached[1]


def _by_index(items: pa.Table, encoder: Encoder) -> pa.Table:
    """Rows in the order of item indices, blank where the table has none."""
    indices = encoder.item_ids.indices(parsing.tokens(items.column(ITEM_ID), ITEM_ID, missing=()).to_pylist())
    known = np.flatnonzero(indices >= FIRST_KNOWN)
    if len(np.unique(indices[known])) != len(known):
        raise DataError("the items table holds an item_id more than once; keep one row of each")
    places = np.full(encoder.item_rows, -1, np.int64)
    places[indices[known]] = known
    rows = items.combine_chunks().take(pa.array(places, mask=places < 0))
    ids = pa.array([None] * FIRST_KNOWN + encoder.item_ids.values, pa.string())
    return rows.set_column(rows.column_names.index(ITEM_ID), ITEM_ID, ids).combine_chunks()


def _seconds(table: pa.Table, name: str, absent: float) -> np.ndarray:
    if name not in table.column_names:
        return np.full(len(table), absent)
    seconds, _ = parsing.times(table.column(name), name, "s")
    return np.where(np.isnan(seconds), absent, seconds)


def _codes(column: pa.ChunkedArray, name: str) -> tuple[np.ndarray, pa.Array]:
    """Codes as `Catalogue.codes` has them, and the value of each from 1 on."""
    array = parsing.plain(column, name)
    if not pt.is_list(array.type):
        text = text_column(parsing.tokens(array, name, missing=()))
        return text.codes + np.int32(1), text.distinct
    text = text_column(array.flatten())
    values = text.codes + np.int32(1)
    rows = pc.list_parent_indices(array).to_numpy(zero_copy_only=False)
    starts = np.searchsorted(rows, rows)
    places = np.arange(len(rows)) - starts
    out = np.zeros((len(array), int(places.max(initial=0)) + 1), np.int32)
    out[rows, places] = values
    return out, text.distinct


def _json_safe(row: Mapping[str, Any]) -> dict[str, Any]:
    safe = {name: _plain(value) for name, value in row.items()}
    return {name: value for name, value in safe.items() if value is not None}


def _plain(value: Any) -> Any:
    if isinstance(value, float):
        whole = math.isfinite(value) and value.is_integer() and abs(value) < 2**53
        return int(value) if whole else value if math.isfinite(value) else None
    if isinstance(value, date | datetime):
        return value.isoformat()
    if isinstance(value, list):
        return [v for v in map(_plain, value) if v is not None]
    return value if isinstance(value, str | int | bool) else None


def frozen(array: np.ndarray) -> np.ndarray:
    """Read-only, as it is shared."""
    array.setflags(write=False)
    return array
