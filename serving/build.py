"""Building a release: from a dataset to a published version, all or nothing."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from configs.errors import DataError
from configs.settings import Settings
from features.datasets import Dataset, IndexedInteractions
from features.encoding import Encoder
from features.holding_out import train_and_valid
from features.schema import AVAILABLE_FROM
from pool.repository import open_releases
from ranking.pipeline import objectives_of, prepare, train_rankers, user_table
from ranking.recipes import Recipe, recipe_named
from recall.index_spec import IndexSpec
from recall.pipeline import RecallData, build_recall
from recall.recipes import recipe as recall_recipe

Progress = Callable[[str, float], None]
"""Told what is being done and the share of it that is done, in [0, 1]."""


def silent(stage: str, share: float) -> None:
    """The progress of nobody."""


def build_release(dataset: Dataset, settings: Settings, recipe: str, progress: Progress = silent) -> str:
    """Train everything on the whole dataset and publish it; returns the version.

    Interrupted or failing, it leaves nothing behind; promoting is the caller's step.

    Raises:
        ConfigError: unknown recipe. DataError: there is nothing to train on.
        ArtifactError: an exported model differs from the trained one.
    """
    ranking, recall = recipe_named(recipe), recall_recipe(recipe)
    if not len(dataset.interactions):
        raise DataError(f"dataset {dataset.name}: no interactions; ingest some before training")
    encoder = Encoder.fit(dataset.schema, dataset.users, dataset.items, dataset.interactions)
    rows = IndexedInteractions.build(dataset, encoder)
    objectives = objectives_of(rows)
    describe: dict[str, Any] = {
        "dataset": dataset.name,
        "recipe": recipe,
        "items": len(encoder.item_ids.values),
        "users": len(encoder.user_ids.values),
        "objectives": objectives,
        "metrics": {},
    }
    with open_releases(settings).draft(describe) as draft:
        folder = draft.folder
        encoder.save(folder / "encoder.json")
        pq.write_table(dataset.items, folder / "items.parquet")
        (folder / "recall").mkdir()
        tower = folder / "models" / "user_tower" / "1" / "model.onnx"
        tower.parent.mkdir(parents=True)
        users, items = user_table(encoder, dataset.users), encoder.item_table(dataset.items)
        data = RecallData(encoder, users, items, rows, available_from(dataset, encoder))
        wanted = settings.recall
        describe["metrics"]["recall"] = build_recall(
            data,
            recall,
            folder / "recall",
            tower,
            item_tower_path=folder / "models" / "item_tower" / "1" / "model.onnx",
            spec=IndexSpec.choose(describe["items"], recall.tower.dim, **wanted.index.model_dump()),
            segment_field=wanted.segment_field,
            progress=progress,
        )
        describe["metrics"]["valid_auc"] = _build_rankers(
            folder, dataset, encoder, users, items, rows, fitted(ranking, dataset, objectives), progress
        )
    return draft.version


def available_from(dataset: Dataset, encoder: Encoder) -> np.ndarray | None:
    """When each item came, [I + 2] float64 seconds since 1970, NaN where unknown; None when no item says."""
    if AVAILABLE_FROM not in dataset.items.column_names:
        return None
    times = dataset.items.column(AVAILABLE_FROM).to_numpy(zero_copy_only=False).astype(np.float64)
    return np.concatenate([np.full(encoder.item_rows - len(times), np.nan), times])


def _build_rankers(
    folder: Path,
    dataset: Dataset,
    encoder: Encoder,
    users: Any,
    items: Any,
    rows: IndexedInteractions,
    recipe: Recipe,
    progress: Progress,
) -> dict[str, float]:
    """Train and write both rankers; returns the validation AUC of each."""
    train, valid = (rows.take(places) for places in train_and_valid(dataset, recipe.rows))
    view = "others" if rows.times is None else "earlier"
    data = prepare(encoder, users, items, train, valid, view, rows if view == "earlier" else None)
    rankers = train_rankers(
        data, recipe, lambda stage, done, total: progress(f"training the {stage} ranker", done / max(1, total))
    )
    for ranker in (rankers.fine, rankers.coarse):
        ranker.save(folder, items)
    return rankers.valid_auc


def fitted(recipe: Recipe, dataset: Dataset, objectives: tuple[str, ...]) -> Recipe:
    """The recipe for this data's objectives and its own idea of what counts as liked."""
    liked = dataset.schema.history.positive_at
    recipe = recipe.with_objectives(*objectives)
    return recipe if liked is None else replace(recipe, like_at=liked)
