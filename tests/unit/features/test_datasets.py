"""A dataset comes back from disk as it was, or is refused."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from configs.errors import DataError
from features.datasets import Dataset, IndexedInteractions
from features.encoding import Encoder
from features.schema import FeatureField


def test_a_saved_dataset_loads_equal(dataset, tmp_path):
    dataset.save(tmp_path / "d")
    again = Dataset.load(tmp_path / "d")
    assert again.schema == dataset.schema
    assert again.interactions.equals(dataset.interactions)
    assert again.users.equals(dataset.users)
    assert again.items.column("genre").to_pylist() == dataset.items.column("genre").to_pylist()


@pytest.mark.parametrize("header", [b"", b"[]", b"{}", b'{"name": "x", "rows": {}, "schema": {"fields": 3}}'])
def test_a_folder_with_a_broken_header_is_refused(dataset, tmp_path, header):
    dataset.save(tmp_path / "d")
    (tmp_path / "d" / "dataset.json").write_bytes(header)
    with pytest.raises(DataError, match="recpool ingest"):
        Dataset.load(tmp_path / "d")


def test_a_missing_or_exchanged_table_is_refused_by_name(dataset, tmp_path):
    dataset.save(tmp_path / "d")
    dataset.take(np.array([0])).save(tmp_path / "smaller")
    (tmp_path / "smaller" / "interactions.parquet").replace(tmp_path / "d" / "interactions.parquet")
    with pytest.raises(DataError, match="interactions.parquet has 1 rows, expected 4"):
        Dataset.load(tmp_path / "d")
    (tmp_path / "d" / "users.parquet").unlink()
    with pytest.raises(DataError):
        Dataset.load(tmp_path / "d")


def test_an_interrupted_save_leaves_the_old_dataset_whole(dataset, tmp_path, monkeypatch):
    dataset.save(tmp_path / "d")
    written = []

    def stop_at_the_third(table, file):
        written.append(file)
        if len(written) == 3:
            raise KeyboardInterrupt
        pq.write_table(table, file)

    monkeypatch.setattr("features.datasets.pq", SimpleNamespace(write_table=stop_at_the_third))
    with pytest.raises(KeyboardInterrupt):
        dataset.take(np.array([0])).save(tmp_path / "d")
    monkeypatch.undo()
    assert len(Dataset.load(tmp_path / "d").interactions) == 4
    assert [path.name for path in tmp_path.iterdir()] == ["d"]


def test_taking_rows_by_mask_and_by_position_agree(dataset):
    mask = np.array([True, False, False, True])
    assert dataset.take(mask).interactions.equals(dataset.take(np.array([0, 3])).interactions)


def test_indexed_interactions_carry_indices_signals_and_histories(dataset):
    encoder = Encoder.fit(dataset.schema, dataset.users, dataset.items)
    indexed = IndexedInteractions.build(dataset, encoder)
    assert indexed.users.tolist() == [2, 2, 3, 2]
    assert indexed.items.tolist() == [2, 3, 4, 4]
    assert indexed.signals.tolist() == [2, 1, 2, 1]
    assert indexed.histories().latest(np.array([2]), 4)[0].tolist() == [[2, 4, 3, 0]]


def test_indexed_interactions_carry_their_context_when_the_schema_has_some(dataset):
    device = FeatureField(name="device", entity="context", kind="categorical")
    schema = dataset.schema.model_copy(update={"fields": (*dataset.schema.fields, device)})
    table = dataset.interactions.append_column("device", pa.array(["tv", "pc", None, "tv"]))
    encoder = Encoder.fit(schema, dataset.users, dataset.items, table)
    indexed = IndexedInteractions.build(replace(dataset, schema=schema, interactions=table), encoder)
    # "tv" is the more frequent value, so it comes first.
    assert indexed.context.cat.tolist() == [[2], [3], [1], [2]]
    assert indexed.take(np.array([3, 1])).context.cat.tolist() == [[2], [3]]
    plain = Encoder.fit(dataset.schema, dataset.users, dataset.items)
    assert IndexedInteractions.build(dataset, plain).take(np.array([0])).context is None
