"""A dataset: interactions with their users and items, in Recpool's own columns.

On disk it is a folder with ``dataset.json`` (schema and counts) and three Parquet files. In memory
its tables are Arrow. Interactions have ``user_id`` and ``item_id`` (strings), ``value`` (float32,
null when absent), ``time_s`` (float64 seconds since 1970 UTC, null when absent) and any context
columns. Users and items have their id and the schema's fields; multi-valued fields are lists of
strings. Items may have a ``title`` and the eligibility columns ``hidden``, ``available_from_s``
and ``expires_at_s``.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq

from configs.errors import DataError
from features.batches import ContextBatch
from features.encoding import Encoder
from features.files import atomic_directory
from features.histories import HistoryIndex
from features.schema import ITEM_ID, TIME, USER_ID, VALUE, FeatureSchema

TABLES = ("interactions", "users", "items")


@dataclass(frozen=True)
class Dataset:
    """Tables of one data set and the schema they follow; up to ``watermark`` it has the events of the log."""

    name: str
    schema: FeatureSchema
    interactions: pa.Table
    users: pa.Table
    items: pa.Table
    watermark: int = 0

    @property
    def has_values(self) -> bool:
        return self.interactions.column(VALUE).null_count < len(self.interactions)

    @property
    def has_times(self) -> bool:
        return self.interactions.column(TIME).null_count == 0 and len(self.interactions) > 0

    @property
    def values(self) -> np.ndarray:
        """[n] float32, NaN where absent."""
        return self.interactions.column(VALUE).to_numpy(zero_copy_only=False).astype(np.float32)

    @property
    def times(self) -> np.ndarray | None:
        """[n] float64 seconds, or None when any row lacks one."""
        return self.interactions.column(TIME).to_numpy(zero_copy_only=False) if self.has_times else None

    def take(self, rows: np.ndarray) -> Dataset:
        """The same users and items with only these interactions (positions or mask)."""
        positions = np.flatnonzero(rows) if rows.dtype == bool else rows
        return Dataset(self.name, self.schema, self.interactions.take(positions), self.users, self.items)

    def save(self, folder: Path) -> None:
        with atomic_directory(folder) as scratch:
            for table in TABLES:
                pq.write_table(getattr(self, table), scratch / f"{table}.parquet")
            counts = {table: len(getattr(self, table)) for table in TABLES}
            header = {
                "name": self.name,
                "schema": self.schema.model_dump(),
                "rows": counts,
                "watermark": self.watermark,
            }
            (scratch / "dataset.json").write_bytes(orjson.dumps(header, option=orjson.OPT_INDENT_2))

    @classmethod
    def load(cls, folder: Path) -> Dataset:
        """Raises DataError when the folder holds no complete dataset."""
        try:
            header = orjson.loads((folder / "dataset.json").read_bytes())
            schema, expected = FeatureSchema.model_validate(header["schema"]), header["rows"]
            tables = {table: pq.read_table(folder / f"{table}.parquet") for table in TABLES}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{folder}: no readable dataset ({error}); run `recpool ingest`") from error
        for table, rows in expected.items():
            if len(tables[table]) != rows:
                raise DataError(
                    f"{folder}/{table}.parquet has {len(tables[table])} rows, expected {rows}; ingest again"
                )
        return cls(header["name"], schema, **tables, watermark=header.get("watermark", 0))


@dataclass(frozen=True)
class IndexedInteractions:
    """Interactions as arrays: users, items [n] int32 indices; values [n] float32; times [n] float64 or None.

    ``context`` holds the rows' own context, [n] rows; None where the schema has no context fields.
    """

    users: np.ndarray
    items: np.ndarray
    values: np.ndarray
    signals: np.ndarray
    times: np.ndarray | None
    context: ContextBatch | None = None

    @classmethod
    def build(cls, dataset: Dataset, encoder: Encoder) -> IndexedInteractions:
        table = dataset.interactions
        values = dataset.values
        return cls(
            _indices(table.column(USER_ID), encoder.user_ids),
            _indices(table.column(ITEM_ID), encoder.item_ids),
            values,
            encoder.signals(values.astype(np.float64)),
            dataset.times,
            encoder.encode_context(table) if encoder.schema.names("context") else None,
        )

    def __len__(self) -> int:
        return len(self.users)

    def take(self, rows: np.ndarray) -> IndexedInteractions:
        times = None if self.times is None else self.times[rows]
        context = None if self.context is None else self.context.take(rows)
        return IndexedInteractions(
            self.users[rows], self.items[rows], self.values[rows], self.signals[rows], times, context
        )

    def histories(self) -> HistoryIndex:
        return HistoryIndex(self.users, self.items, self.signals, self.times)


def distinct(column: pa.ChunkedArray) -> tuple[list[str], np.ndarray]:
    """Distinct texts of a column, and the place of each row's among them, [n] int64."""
    encoded = column.combine_chunks().dictionary_encode()
    encoded = encoded.combine_chunks() if isinstance(encoded, pa.ChunkedArray) else encoded
    return encoded.dictionary.to_pylist(), encoded.indices.to_numpy(zero_copy_only=False).astype(np.int64)


def _indices(column: pa.ChunkedArray, vocabulary) -> np.ndarray:
    """Vocabulary indices of a string column [n] int32, looking each distinct value up once."""
    texts, places = distinct(column)
    return vocabulary.indices(texts)[places] if texts else np.zeros(0, np.int32)
