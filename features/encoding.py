"""Raw rows to arrays, the same way offline and online.

Every vocabulary keeps index 0 for padding and 1 for missing or unseen values; known values start
at 2. Training drops values to bucket 1 at random, so the bucket holds a usable average. A missing
number becomes the median of the training rows. The *item index* used everywhere (tables, FAISS,
histories) is the row of the item id vocabulary, so every item table has ``items + 2`` rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pyarrow as pa

from configs.errors import ArtifactError, InvalidRequest
from features.batches import ContextBatch, ItemBatch, UserBatch
from features.id_hashes import HashIndex
from features.packing import SIGNAL_NEGATIVE, SIGNAL_POSITIVE, pack_histories
from features.schema import ITEM_ID, USER_ID, FeatureField, FeatureSchema
from features.vocabulary import (
    FIRST_KNOWN,
    PADDING,
    UNKNOWN,
    NumericStats,
    Vocabulary,
    numeric_stats,
    vocabulary_of,
)

__all__ = ["FIRST_KNOWN", "PADDING", "UNKNOWN", "Encoder", "ItemBatch", "UserBatch", "Vocabulary"]

_LARGEST = float(np.finfo(np.float32).max)

_NO_EVENTS, _NO_VALUES = np.zeros(0, np.int32), np.zeros(0, np.float64)


def _column(table: pa.Table, name: str) -> list[Any]:
    return table.column(name).to_pylist() if name in table.column_names else [None] * len(table)


class Encoder:
    """Vocabularies and statistics of one training set, and the encoding they define.

    Attributes:
        kinds: kind of each field by name, of the entities that a request describes ("user", "context").
    """

    def __init__(
        self,
        schema: FeatureSchema,
        user_ids: Vocabulary,
        item_ids: Vocabulary,
        vocabularies: Mapping[str, Vocabulary],
        stats: Mapping[str, NumericStats],
    ):
        self.schema = schema
        self.user_ids = user_ids
        self.item_ids = item_ids
        self._vocabularies = dict(vocabularies)
        self._stats = dict(stats)
        # What a request would otherwise work out anew each time.
        self._user_columns = (USER_ID, *schema.names("user"), *schema.names("context"))
        self._user_numbers = tuple(f.name for f in schema.of("user", kind="numeric"))
        self.kinds = {e: {f.name: f.kind for f in schema.fields if f.entity == e} for e in ("user", "context")}
        self._fields: dict[tuple[tuple[str, ...], str], tuple[FeatureField, ...]] = {
            (entities, kind): schema.of(*entities, kind=kind)  # type: ignore[arg-type]
            for entities in (("item",), ("user",), ("context",), ("user", "context"))
            for kind in ("categorical", "numeric", "multi")
        }

    @classmethod
    def fit(
        cls, schema: FeatureSchema, users: pa.Table, items: pa.Table, interactions: pa.Table | None = None
    ) -> Encoder:
        """Learn vocabularies and statistics.

        Args:
            users: one row a user, with a ``user_id`` column; ids are kept in table order.
            items: one row an item, with an ``item_id`` column; ids are kept in table order.
            interactions: training rows; needed when the schema has context fields.
        """
        tables = {
            "user": users,
            "item": items,
            "context": interactions if interactions is not None else users[:0],
        }
        vocabularies, stats = {}, {}
        for field in schema.fields:
            column = _column(tables[field.entity], field.name)
            if field.kind == "numeric":
                stats[_key(field)] = numeric_stats(column)
            else:
                vocabularies[_key(field)] = vocabulary_of([column])
        ids = [Vocabulary(table.column(name).to_pylist()) for table, name in ((users, USER_ID), (items, ITEM_ID))]
        return cls(schema, ids[0], ids[1], vocabularies, stats)

    def vocabulary(self, field: FeatureField) -> Vocabulary:
        return self._vocabularies[_key(field)]

    @property
    def item_rows(self) -> int:
        """Rows of every item table: items + 2."""
        return len(self.item_ids)

    def cat_sizes(self, *entities: str) -> list[int]:
        """Embedding rows of each categorical column of an ItemBatch ("item") or UserBatch ("user", "context")."""
        ids = self.item_ids if entities[0] == "item" else self.user_ids
        fields_ = self.schema.of(*entities, kind="categorical")  # type: ignore[arg-type]
        return [len(ids), *(len(self.vocabulary(f)) for f in fields_)]

    def multi_sizes(self, entity: str) -> list[int]:
        """Embedding rows of each multi-valued column."""
        return [len(self.vocabulary(f)) for f in self.schema.of(entity, kind="multi")]  # type: ignore[arg-type]

    def encode_items(self, items: pa.Table) -> ItemBatch:
        """Encode a table of items, one row each."""
        columns = {name: _column(items, name) for name in (ITEM_ID, *self.schema.names("item"))}
        cat, num, multi = self._encode(columns, len(items), ITEM_ID, self.item_ids, ("item",))
        return ItemBatch(cat, num, multi)

    def item_table(self, items: pa.Table) -> ItemBatch:
        """Encode the catalogue as a table by item index, [items + 2] rows; the two first rows are imputed."""
        blank = pa.table({ITEM_ID: pa.nulls(FIRST_KNOWN, pa.string())})
        batch = self.encode_items(pa.concat_tables([blank, items], promote_options="default"))
        batch.cat[PADDING] = PADDING
        return batch

    def encode_users(self, rows: Sequence[Mapping[str, Any]]) -> UserBatch:
        """Encode profiles with context; each row maps field names (and ``user_id``) to raw values.

        The batch has empty histories; add them with `UserBatch.with_history`.

        Raises:
            InvalidRequest: a numeric field holds something that is not a number; names field and row.
                Pass what no caller sent through `readable` first.
        """
        columns = {name: [row.get(name) for row in rows] for name in self._user_columns}
        cat, num, multi = self._encode(columns, len(rows), USER_ID, self.user_ids, ("user", "context"))
        empty = np.zeros((len(rows), 1), np.int32), np.zeros((len(rows), 1), np.int8)
        return UserBatch(cat, num, multi, *empty)

    def readable(self, profile: Mapping[str, Any]) -> tuple[Mapping[str, Any], tuple[str, ...]]:
        """The profile without numeric fields that hold no number, and the names of those fields.

        For stored profiles: a row may be older than the schema, which its user cannot help.
        """
        wrong = tuple([name for name in self._user_numbers if not _is_readable(profile.get(name))])
        return ({name: v for name, v in profile.items() if name not in wrong}, wrong) if wrong else (profile, wrong)

    def encode_context(self, interactions: pa.Table) -> ContextBatch:
        """Encode the context columns of interactions, as `encode_users` does those of a request."""
        columns = {name: _column(interactions, name) for name in self.schema.names("context")}
        rows = len(interactions)
        cat = _side_by_side(self._categories(columns, ("context",)), rows, np.int32)
        return ContextBatch(cat, self._numerics(columns, rows, ("context",)))

    @cached_property
    def items_by_hash(self) -> HashIndex:
        """From hashes of item ids (`features.id_hashes`) to the indices that ``item_ids`` gives."""
        return HashIndex(self.item_ids.values, FIRST_KNOWN, UNKNOWN)

    def encode_histories(
        self, items: Sequence[np.ndarray], values: Sequence[np.ndarray]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Pack histories into (history [B, W] int32, signal [B, W] int8), cut to the H most recent.

        W is the length of the longest, at least 1: what models spend on a history grows with its padding.

        Args:
            items: per user, item indices [n] most recent first; those outside the catalogue are left out.
            values: per user, interaction values [n]; NaN, a missing one, counts as positive.
        """
        threshold = self.schema.history.positive_at
        return pack_histories(
            np.concatenate([_NO_EVENTS, *items], dtype=np.int32),
            np.concatenate([_NO_VALUES, *values]),
            np.array([0, *accumulate(map(len, items))]),
            self.schema.history.length,
            -math.inf if threshold is None else threshold,
        )

    def signals(self, values: np.ndarray) -> np.ndarray:
        """Interaction values [n] float to signals [n] int8."""
        threshold = self.schema.history.positive_at
        if threshold is None:
            return np.full(len(values), SIGNAL_POSITIVE, np.int8)
        return np.where(values < threshold, SIGNAL_NEGATIVE, SIGNAL_POSITIVE).astype(np.int8)

    def _encode(
        self,
        columns: Mapping[str, list[Any]],
        rows: int,
        id_name: str,
        ids: Vocabulary,
        entities: tuple[str, ...],
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        categories = [list(map(ids.index, columns[id_name])), *self._categories(columns, entities)]
        multis = self._fields[entities[:1], "multi"]
        multi = np.zeros((rows, len(multis), max((f.max_values for f in multis), default=1)), np.int32)
        for position, field in enumerate(multis):
            self._fill_multi(multi[:, position], field, columns[field.name])
        return _side_by_side(categories, rows, np.int32), self._numerics(columns, rows, entities), multi

    def _categories(self, columns: Mapping[str, list[Any]], entities: tuple[str, ...]) -> list[list[int]]:
        return [
            list(map(self._vocabularies[_key(f)].index, columns[f.name])) for f in self._fields[entities, "categorical"]
        ]

    def _numerics(self, columns: Mapping[str, list[Any]], rows: int, entities: tuple[str, ...]) -> np.ndarray:
        numbers = [self._numbers(f, columns[f.name]) for f in self._fields[entities, "numeric"]]
        return _side_by_side(numbers, rows, np.float32)

    def _numbers(self, field: FeatureField, column: list[Any]) -> list[float]:
        stats, out = self._stats[_key(field)], []
        for row, value in enumerate(column):
            try:
                number = _number(value)
            except (TypeError, ValueError):
                message = f"{field.name} (row {row}): {value!r} is not a number; send a number or leave it out"
                raise InvalidRequest(message, field.name) from None
            scaled = ((stats.median if number is None else number) - stats.mean) / stats.std
            # Beyond float32 lies infinity, which turns a model's scores into NaN.
            out.append(scaled if abs(scaled) <= _LARGEST else (stats.median - stats.mean) / stats.std)
        return out

    def _fill_multi(self, out: np.ndarray, field: FeatureField, column: list[Any]) -> None:
        vocabulary = self.vocabulary(field)
        for row, value in enumerate(column):
            tokens = value or [None] if isinstance(value, list | tuple) else [value]
            indices = vocabulary.indices(tokens[: field.max_values])
            out[row, : len(indices)] = indices

    def save(self, path: Path) -> None:
        """Write as one JSON file."""
        path.write_bytes(
            orjson.dumps(
                {
                    "schema": self.schema.model_dump(),
                    "user_ids": self.user_ids.values,
                    "item_ids": self.item_ids.values,
                    "vocabularies": {name: v.values for name, v in self._vocabularies.items()},
                    "stats": {name: [s.median, s.mean, s.std] for name, s in self._stats.items()},
                }
            )
        )

    @classmethod
    def load(cls, path: Path) -> Encoder:
        """Raises ArtifactError when the file is not an encoder."""
        try:
            raw = orjson.loads(path.read_bytes())
            return cls(
                FeatureSchema.model_validate(raw["schema"]),
                Vocabulary(raw["user_ids"]),
                Vocabulary(raw["item_ids"]),
                {name: Vocabulary(values) for name, values in raw["vocabularies"].items()},
                {name: NumericStats(*values) for name, values in raw["stats"].items()},
            )
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"{path}: not a readable encoder ({error}); rebuild the release") from error


def _side_by_side(columns: list[list[Any]], rows: int, dtype: type[np.generic]) -> np.ndarray:
    """Columns, each [rows], as [rows, K]; K may be 0."""
    out = np.empty((rows, len(columns)), dtype)
    for place, column in enumerate(columns):
        out[:, place] = column
    return out


def _key(field: FeatureField) -> str:
    return f"{field.entity}.{field.name}"


def _number(value: Any) -> float | None:
    """A finite number, or None when missing; raises TypeError or ValueError for what is no number."""
    if value is None:
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def _is_readable(value: Any) -> bool:
    try:
        _number(value)
    except (TypeError, ValueError):
        return False
    return True
