"""The dataset of a work: given whole, or as the folder it is read from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import orjson

from configs.errors import DataError
from features.datasets import TABLES, Dataset

Source = Path | Dataset


def read(source: Source) -> Dataset:
    """Raises DataError when the folder holds no complete dataset."""
    return source if isinstance(source, Dataset) else Dataset.load(source)


def fingerprint(source: Source) -> dict[str, Any]:
    """What tells one dataset from another: name, schema and counts. Raises DataError when there is none."""
    if isinstance(source, Dataset):
        rows = {table: len(getattr(source, table)) for table in TABLES}
        return {"name": source.name, "schema": source.schema.model_dump(), "rows": rows}
    try:
        raw = orjson.loads((source / "dataset.json").read_bytes())
        return {"name": raw["name"], "schema": raw["schema"], "rows": raw["rows"]}
    except (OSError, ValueError, KeyError) as error:
        raise DataError(f"{source}: no readable dataset ({error}); run `recpool ingest`") from error
