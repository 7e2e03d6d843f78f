"""From training rows to the recall part of a release, and back to something that answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from features.datasets import IndexedInteractions
from features.encoding import FIRST_KNOWN, Encoder, ItemBatch, UserBatch
from features.row_table import RowTable
from recall.cold_items import ItemEncoder
from recall.export import export_item_tower, export_user_tower
from recall.index import AnnIndex
from recall.index_spec import IndexSpec
from recall.item_to_item import NeighbourTable, train_neighbours
from recall.kernels import NO_KEY
from recall.merge import Merged, merge
from recall.ranked_lists import RankedLists, first_seen, fresh_lists, popular_lists, segment_column
from recall.recipes import RecallRecipe
from recall.sources import AnnSource, ItemToItemSource, ListSource, RecallRequest, Source, SourceResult
from recall.streaming import StreamingIndex
from recall.training import TowerTrainer
from recall.training_data import interaction_matrix
from recall.two_tower import TowerShape

Progress = Callable[[str, float], None]
"""Called with what is being done and the share of it that is done, in [0, 1]."""
POPULAR_FILE, FRESH_FILE = "popular.npz", "fresh.npz"
TOWER_FILE = "tower.pt"
"""Weights of both towers, for trainings that begin with them; serving does not read it."""
PARITY_ROWS = 64


@dataclass(frozen=True)
class RecallData:
    """What recall trains on.

    users: profiles by user index, [U + 2] rows; items: catalogue by item index, [I + 2] rows (see
    `Encoder.item_table`); rows: training interactions; item_dates_s: [I + 2] float64 seconds since
    1970 when an item became available, NaN where unknown, or None.
    """

    encoder: Encoder
    users: UserBatch
    items: ItemBatch
    rows: IndexedInteractions
    item_dates_s: np.ndarray | None = None


def build_recall(
    data: RecallData,
    recipe: RecallRecipe,
    folder: Path,
    tower_path: Path,
    *,
    item_tower_path: Path | None = None,
    spec: IndexSpec | None = None,
    segment_field: str | None = None,
    seed: int = 0,
    progress: Progress = lambda what, share: None,
) -> dict[str, float]:
    """Train everything and write it.

    Args:
        folder: existing; gets index, item vectors, neighbours and ranked lists.
        tower_path: the user tower's ONNX file. item_tower_path: the item tower's; absent: none is written.
    Returns:
        figures of the training by name.
    Raises:
        ArtifactError, ConfigError: what is to be written is wrong; names it.
    """
    trainer = train_tower(data, recipe, seed, progress)
    parity = write_tower(trainer, data, folder, tower_path, spec, seed)
    if item_tower_path is not None:
        write_item_tower(trainer, data, item_tower_path)
    write_neighbours(data, recipe, folder, progress)
    write_lists(data, recipe, folder, segment_field)
    return {"tower_steps": float(trainer.step_count), "tower_loss": trainer.recent_loss, "onnx_difference": parity}


def train_tower(
    data: RecallData, recipe: RecallRecipe, seed: int = 0, progress: Progress = lambda what, share: None
) -> TowerTrainer:
    """Run the two-tower's training to its end."""
    trainer = tower_trainer(data, recipe, seed)
    while not trainer.done:
        trainer.step()
        progress("two-tower", trainer.step_count / trainer.total_steps)
    return trainer


def tower_trainer(data: RecallData, recipe: RecallRecipe, seed: int = 0, **changes: Any) -> TowerTrainer:
    """A trainer at its first step; ``changes`` are further arguments of `TowerTrainer`."""
    length, shape = data.encoder.schema.history.length, TowerShape.of(data.encoder)
    return TowerTrainer(shape, data.users, data.items, data.rows, length, recipe.tower, seed, **changes)


def write_tower(
    trainer: TowerTrainer,
    data: RecallData,
    folder: Path,
    tower_path: Path,
    spec: IndexSpec | None = None,
    seed: int = 0,
) -> float:
    """Write index, item vectors, weights and user tower; returns the ONNX difference."""
    AnnIndex.build(trainer.item_vectors(), spec, seed).save(folder)
    write_weights(trainer, folder)
    return write_user_tower(trainer, data, tower_path)


def write_weights(trainer: TowerTrainer, folder: Path) -> None:
    """Write what a later training can begin with, as ``torch.load(weights_only=True)`` reads it."""
    torch.save(dict(trainer.model.state_dict()), folder / TOWER_FILE)


def write_user_tower(trainer: TowerTrainer, data: RecallData, tower_path: Path) -> float:
    """Write the user tower alone; returns the ONNX difference."""
    rows = np.arange(min(PARITY_ROWS, len(data.users)))
    histories = data.rows.histories().latest(rows, data.encoder.schema.history.length)
    sample = data.users.take(rows).with_history(*histories)
    return export_user_tower(trainer.model.user, trainer.model.shape, sample, tower_path)


def write_item_tower(trainer: TowerTrainer, data: RecallData, path: Path) -> float:
    """Write the item tower alone, for vectors of items that come later; returns the ONNX difference."""
    sample = data.items.take(np.arange(min(PARITY_ROWS, len(data.items))))
    return export_item_tower(trainer.model.item, sample, path)


def write_neighbours(
    data: RecallData, recipe: RecallRecipe, folder: Path, progress: Progress = lambda what, share: None
) -> None:
    progress("item-to-item", 0.0)
    matrix = interaction_matrix(data.rows, data.encoder.item_rows)
    train_neighbours(matrix, recipe.neighbours, recipe.ease_l2).save(folder)
    progress("item-to-item", 1.0)


def write_lists(data: RecallData, recipe: RecallRecipe, folder: Path, segment_field: str | None = None) -> None:
    size, column = data.encoder.item_rows, segment_column(data.encoder, segment_field)
    popular_lists(data.rows, size, data.users, column, recipe.half_life_days).save(folder / POPULAR_FILE)
    fresh_lists(data.rows, size, first_seen(data.rows, size, data.item_dates_s)).save(folder / FRESH_FILE)


@dataclass(frozen=True)
class Recall:
    """The loaded sources of one release. Searches are thread-safe.

    ``folder`` holds the item tower, which is only read when items change.
    """

    index: AnnIndex | StreamingIndex
    sources: Mapping[str, Source]
    popular: RankedLists
    folder: Path = Path()
    _towers: list[ItemEncoder] = field(default_factory=list, repr=False)

    @classmethod
    def load(cls, folder: Path, items: int | None = None, nprobe: int | None = None) -> Recall:
        """Read what `build_recall` wrote.

        Args:
            items: how many items the release has (item vocabulary without its two first rows).
        Raises:
            ArtifactError: a file is missing, unreadable or made for another catalogue.
        """
        index = StreamingIndex(AnnIndex.load(folder, items))
        popular = RankedLists.load(folder / POPULAR_FILE, items)
        found: list[Source] = [
            AnnSource(index, nprobe),
            ItemToItemSource(NeighbourTable.load(folder, items)),
            ListSource("popular", popular),
            ListSource("fresh", RankedLists.load(folder / FRESH_FILE, items)),
        ]
        return cls(index, {source.name: source for source in found}, popular, folder)

    def put(self, items: np.ndarray, encoded: ItemBatch, gone: np.ndarray, encoder: Encoder) -> None:
        """Put items [n] int32 into the index, with vectors of the item tower, and drop the items ``gone`` [m].

        Raises ArtifactError when the release has no item tower.
        """
        assert isinstance(self.index, StreamingIndex)
        if not self._towers:
            self._towers.append(ItemEncoder(self.folder / TOWER_FILE, encoder))
        self.index.apply(items, self._towers[0](encoded), gone)

    def similar(
        self, seeds: np.ndarray, request: RecallRequest, limit: int
    ) -> tuple[Merged, tuple[tuple[str, str], ...]]:
        """Items like seeds [B, S] int32: neighbours and nearest vectors, merged; seeds are not returned.

        A row without a seed of this catalogue has nothing to be like: it gets the popular list, which
        no other row gets, and (source, reason) of the two sources that could not answer it is returned.
        """
        source = self.sources["item_to_item"]
        assert isinstance(source, ItemToItemSource)
        seeds = np.where((seeds >= FIRST_KNOWN) & (seeds < len(self.index.vectors)), seeds, 0)
        unseeded = np.count_nonzero(seeds, axis=1) == 0
        excluded = np.concatenate([request.excluded, seeds], 1)
        wider = replace(request, vectors=mean_vectors(self.index.vectors, seeds), excluded=excluded)
        results = {
            "ann": self.sources["ann"].retrieve(wider, limit),
            "item_to_item": source.similar(seeds, wider, limit),
        }
        if unseeded.any():
            results["popular"] = self._popular_for(unseeded, wider, limit)
        failed = tuple((name, "no_known_seed") for name in ("ann", "item_to_item") if unseeded.any())
        return merge(results, dict.fromkeys(results, limit), limit, rows=len(seeds)), failed

    def _popular_for(self, chosen: np.ndarray, request: RecallRequest, n: int) -> SourceResult:
        """Everyone's popular items for the chosen rows [B] bool, nothing for the others."""
        found = ListSource("popular", replace(self.popular, column=0)).retrieve(request, n)
        return SourceResult(np.where(chosen[:, None], found.keys, NO_KEY))


def mean_vectors(vectors: np.ndarray | RowTable, seeds: np.ndarray) -> np.ndarray:
    """Mean of the seeds' unit vectors [B, D] float32; seeds [B, S] int32 are padded with 0.

    The bias is left out, so that likeness is not popularity. A row without seeds has no mean: it is
    NaN, for which the index has no answer; zeros would be near to arbitrary items.
    """
    known = (seeds > 0)[..., None]
    picked = np.array(vectors[seeds], np.float32)
    picked[..., -1] = 0.0
    norms = np.linalg.norm(picked, axis=2, keepdims=True)
    unit = np.where(known, picked / np.maximum(norms, 1e-12), 0.0)
    count = known.sum(1)
    return np.where(count > 0, unit.sum(1) / np.maximum(count, 1), np.nan).astype(np.float32)
