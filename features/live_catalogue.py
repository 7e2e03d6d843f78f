"""A release's catalogue that follows the changes of its items, and tells those who keep more of them.

One thread applies changes; any number read. What they read is replaced as a whole, and grows before anything
that holds item indices does, so an index that recall returns is known to whoever looks it up afterwards.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakMethod

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

from configs.errors import InvalidRequest
from features.background import in_background
from features.batches import ItemBatch
from features.catalogue import Catalogue
from features.encoding import FIRST_KNOWN, UNKNOWN, Encoder
from features.item_changes import ItemState
from features.schema import ITEM_ID
from features.streaming_catalogue import CatalogueSnapshot, delta_schema

log = logging.getLogger(__name__)

FOLD_ABOVE = 1_000
"""Changed items that are kept apart; each change costs as much as there are of these. Beyond they become base rows."""


@dataclass(frozen=True)
class Changed:
    """What one step changed: indices [n] int32 of items that are there now, encoded, and those [m] that are gone."""

    indices: np.ndarray
    items: ItemBatch
    gone: np.ndarray


Listener = Callable[[Changed], None]


class LiveCatalogue:
    """What `Catalogue` offers, with changes applied.

    Attributes:
        version: of the last change that is applied (`ItemState.version`).
        trained_rows: rows of every table of the release; what lies behind is known to no model's vocabulary.

    Args:
        spawn: runs work beside.
    """

    def __init__(
        self,
        catalogue: Catalogue,
        encoder: Encoder,
        spawn: Callable[[str, Callable[[], None]], object] = in_background,
    ):
        self._spawn, self._lock, self._folds = spawn, threading.Lock(), False
        self._release, self._base, self._encoder = catalogue, catalogue, encoder
        self._now: Catalogue | CatalogueSnapshot = catalogue
        self._schema = delta_schema(catalogue.table.schema)
        self._rows: dict[int, dict[str, Any]] = {}
        self._gone = np.zeros(len(catalogue), bool)
        self._indices: dict[str, int] = {}
        self._listeners: list[WeakMethod[Listener]] = []
        self.version, self.trained_rows = 0, len(catalogue)

    def snapshot(self) -> Catalogue | CatalogueSnapshot:
        """All of it as it is now."""
        return self._now

    def __len__(self) -> int:
        return len(self._now)

    @property
    def fields(self) -> tuple[str, ...]:
        return self._release.fields

    def index(self, item_id: str) -> int:
        """The index of an item; that of the unknown item when it is none, or was deleted."""
        index = self._encoder.item_ids.index(item_id)
        if index < FIRST_KNOWN:
            index = self._indices.get(item_id, UNKNOWN)
        now = self._now
        return UNKNOWN if isinstance(now, CatalogueSnapshot) and now.is_gone(index) else index

    def added(self) -> Mapping[str, int]:
        """Indices of the items that the release lacks, deleted ones included, by id."""
        return self._indices

    def ids(self, indices: Sequence[int] | np.ndarray) -> list[str]:
        return self._now.ids(indices)

    def metadata(self, indices: Sequence[int] | np.ndarray) -> list[dict[str, Any]]:
        return self._now.metadata(indices)

    def eligible(self, now_s: float) -> np.ndarray:
        return self._now.eligible(now_s)

    def mask(self, expression: str) -> np.ndarray:
        return self._now.mask(expression)

    def codes(self, field: str) -> np.ndarray:
        return self._now.codes(field)

    def check(self, name: str, value: Any) -> None:
        """Raises InvalidRequest when no item can have this value in this field; lists the known fields."""
        if name not in self._schema.names or name == ITEM_ID:
            known = sorted(set(self._schema.names) - {ITEM_ID})
            raise InvalidRequest(f"fields.{name}: no such field; known fields: {known}", f"fields.{name}")
        kind = self._schema.field(name).type
        try:
            if pt.is_list(kind) and isinstance(value, str):
                raise TypeError("Arrow would take its letters")
            pa.array([value], kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            message = f"fields.{name}: {value!r:.80} is no {kind}; send one, or null"
            raise InvalidRequest(message, f"fields.{name}") from None

    def subscribe(self, listener: Listener) -> None:
        """Have a bound method called with every step's `Changed`, for as long as its object lives."""
        self._listeners.append(WeakMethod(listener))

    def apply(self, states: Sequence[ItemState]) -> np.ndarray:
        """Apply states of distinct items, in the order of their versions; returns the indices [n] that they are of."""
        indices = np.array([self._index_of(state) for state in states], np.int32)
        deleted = np.array([state.deleted for state in states], bool)
        each = zip(indices.tolist(), states, strict=True)
        live = {index: self._row_of(state, index) for index, state in each if not state.deleted}
        with self._lock:
            self._grow(int(indices.max()) + 1)
            self._gone[indices] = deleted
            self._rows |= live
            self._publish()
        self.version = max(state.version for state in states)
        self._maybe_fold()
        self._tell(live, indices[deleted])
        return indices

    def _maybe_fold(self) -> None:
        """Begin to make base rows of the changed ones when there are many."""
        if self._folds or len(self._rows) <= FOLD_ABOVE:
            return
        self._folds, rows, base = True, dict(self._rows), self._base
        self._spawn("catalogue-fold", lambda: self._fold(rows, base))

    def _fold(self, rows: Mapping[int, Mapping[str, Any]], base: Catalogue) -> None:
        try:
            made = self._with_rows(base, rows)
            with self._lock:
                # Rows that changed while it was made stay apart.
                self._base = made
                self._rows = {index: row for index, row in self._rows.items() if rows.get(index) is not row}
                self._publish()
        finally:
            self._folds = False

    def _with_rows(self, base: Catalogue, rows: Mapping[int, Mapping[str, Any]]) -> Catalogue:
        """A catalogue in which these rows replace the ones of the same index; indices without any are blank."""
        table = _with_columns(base.table.slice(FIRST_KNOWN), self._schema)
        order = np.full(max(len(table), max(rows) + 1 - FIRST_KNOWN), -1, np.int64)
        order[: len(table)] = np.arange(len(table))
        order[np.fromiter(rows, np.int64, len(rows)) - FIRST_KNOWN] = len(table) + np.arange(len(rows))
        both = pa.concat_tables([table, self._table(rows.values())]).combine_chunks()
        return Catalogue.of_rows(both.take(pa.array(order, mask=order < 0)))

    def _index_of(self, state: ItemState) -> int:
        index = self._encoder.item_ids.index(state.item_id)
        return index if index >= FIRST_KNOWN else self.trained_rows + state.slot

    def _row_of(self, state: ItemState, index: int) -> dict[str, Any]:
        """The release's values, if it has the item, and over them the changed ones."""
        own = self._release.row(index) if index < self.trained_rows else {}
        return {**own, **state.fields, ITEM_ID: state.item_id}

    def _grow(self, size: int) -> None:
        if size > len(self._gone):
            # Indices that no item has yet are as good as deleted.
            self._gone = np.concatenate([self._gone, np.ones(size - len(self._gone), bool)])

    def _publish(self) -> None:
        order = sorted(self._rows)
        delta = Catalogue.of_rows(self._table([self._rows[index] for index in order]))
        self._now = CatalogueSnapshot(self._base, len(self._gone), np.array(order, np.int64), delta, self._gone.copy())
        new = {self._rows[index][ITEM_ID]: index for index in order if index >= self.trained_rows}
        fresh = [item_id for item_id in new if item_id not in self._indices]
        self._encoder.items_by_hash.add(fresh, np.array([new[item_id] for item_id in fresh], np.int32))
        self._indices |= new

    def _table(self, rows: Any) -> pa.Table:
        rows = list(rows)
        try:
            return pa.Table.from_pylist(rows, schema=self._schema)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            # Checked against another release, whose fields are of other kinds.
            return pa.Table.from_pylist([self._readable(row) for row in rows], schema=self._schema)

    def _readable(self, row: Mapping[str, Any]) -> dict[str, Any]:
        kept = {ITEM_ID: row[ITEM_ID]}
        for name, value in row.items():
            try:
                self.check(name, value)
                kept[name] = value
            except InvalidRequest:
                continue
        return kept

    def _tell(self, live: Mapping[int, Mapping[str, Any]], gone: np.ndarray) -> None:
        items = self._encoder.encode_items(self._table(live.values()))
        changed = Changed(np.fromiter(live, np.int32, len(live)), items, gone)
        for reference in self._listeners:
            listener = reference()
            if listener is not None:
                try:
                    listener(changed)
                except Exception:  # one that fails must not keep the others, or later changes, from being applied
                    log.exception("a change of items is not applied everywhere")


def _with_columns(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """With the columns that it lacks, all absent."""
    for field in schema:
        if field.name not in table.column_names:
            table = table.append_column(field, pa.nulls(len(table), field.type))
    return table.select(schema.names).cast(schema)
