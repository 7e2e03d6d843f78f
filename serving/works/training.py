"""What a fine-tune trains and writes, piece by piece: the steps of `serving.build.build_release`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow.parquet as pq
import torch

from configs.errors import DataError
from configs.settings import Settings
from features.datasets import Dataset, IndexedInteractions
from features.encoding import Encoder, ItemBatch, UserBatch
from features.holding_out import train_and_valid
from pool.repository import open_releases
from ranking.coarse import CoarseRanker
from ranking.fine import FineRanker
from ranking.pipeline import RankData, RankerFit, objectives_of, outputs_of, prepare, spec_of, user_table
from ranking.recipes import Recipe, recipe_named
from ranking.scoring import Model
from ranking.store import TrainedRanker
from recall.index import AnnIndex
from recall.index_spec import IndexSpec
from recall.pipeline import (
    RecallData,
    tower_trainer,
    write_item_tower,
    write_lists,
    write_neighbours,
    write_user_tower,
    write_weights,
)
from recall.recipes import recipe as recall_recipe
from recall.tower_units import TowerUnits
from recall.training import TowerTrainer
from serving.build import available_from, fitted
from serving.works.options import FinetuneOptions
from serving.works.sources import Source, read
from serving.works.warm_start import check_weights, read_weights, start_from

RankerName = Literal["fine", "coarse"]
Task = tuple[str, Callable[[], None]]


class Training:
    """Data, models and files of one fine-tune. Methods are called in the order of the parts that they make up.

    Attributes:
        models: rankers that are trained.
        tower: weights of the trained two-tower; None before, and once its files are written.
        metrics: figures of what is trained, for the manifest.
        draft: folder of the release's files.
    """

    dataset: Dataset
    encoder: Encoder
    rows: IndexedInteractions
    users: UserBatch
    items: ItemBatch

    def __init__(self, dataset: Source, settings: Settings, options: FinetuneOptions, draft: Path):
        self._source, self._settings, self._options, self.draft = dataset, settings, options, draft
        self.recall = recall_recipe(options.recipe)
        self.ranking = recipe_named(options.recipe)
        self.tower: dict[str, Any] | None = None
        self.models: dict[str, Model] = {}
        self.metrics: dict[str, Any] = {"recall": {}, "valid_auc": {}}
        self._trainer: TowerTrainer | None = None
        self._rank_data: RankData | None = None
        self._old: tuple[Path, Encoder] | None = None
        if options.start_from is not None:
            self._old_folder = open_releases(settings).path(options.start_from)
            check_weights(self._old_folder)

    # --- reading

    def reading(self) -> list[Task]:
        """Each is one call over the whole dataset, which takes up to seconds for a million interactions."""
        return [
            ("reading the dataset", self._read),
            ("fitting the encoder", self._fit_encoder),
            ("indexing the interactions", self._index),
            ("encoding the users", self._encode_users),
            ("encoding the items", self._encode_items),
        ]

    def _read(self) -> None:
        self.dataset = read(self._source)
        if not len(self.dataset.interactions):
            raise DataError(f"dataset {self.dataset.name}: no interactions; ingest some before training")

    def _fit_encoder(self) -> None:
        data = self.dataset
        self.encoder = Encoder.fit(data.schema, data.users, data.items, data.interactions)
        if self._options.start_from is not None:
            self._old = self._old_folder, Encoder.load(self._old_folder / "encoder.json")

    def _index(self) -> None:
        self.rows = IndexedInteractions.build(self.dataset, self.encoder)
        self.objectives = objectives_of(self.rows)
        self.ranking = self._adapted(fitted(self.ranking, self.dataset, self.objectives))
        if self._options.epochs is not None:
            tower = replace(self.recall.tower, epochs=self._options.epochs)
            self.recall = replace(self.recall, tower=tower)

    def _encode_users(self) -> None:
        self.users = user_table(self.encoder, self.dataset.users)

    def _encode_items(self) -> None:
        self.items = self.encoder.item_table(self.dataset.items)

    def _adapted(self, recipe: Recipe) -> Recipe:
        options = self._options
        most = [count for count in (recipe.rows, options.most_rows) if count is not None]
        changed: dict[str, Any] = {"rows": min(most, default=None)}
        for name, groups in (("fine", options.grouping.fine_groups), ("coarse", options.grouping.coarse_groups)):
            schedule = getattr(recipe, name)
            epochs, micro = options.epochs or schedule.epochs, max(1, schedule.groups // (groups or schedule.groups))
            changed[name] = replace(schedule, epochs=epochs, micro=micro, seed=options.seed)
        return replace(recipe, **changed)

    # --- the two-tower

    def begin_tower(self, resumed: bool) -> TowerUnits:
        """The start at singular vectors is one call, of seconds for thousands of items."""
        trainer = self._tower_trainer()
        if not resumed and self._old is not None:
            start_from(trainer.model, read_weights(self._old[0], "tower"), self._old[1], self.encoder)
        elif not resumed:
            trainer.start_spectral()
        cut = self._options.grouping
        return TowerUnits(trainer, cut.tower_users, cut.tower_scored, cut.tower_items)

    def end_tower(self) -> None:
        assert self._trainer is not None
        trainer = self._trainer
        self.metrics["recall"] = {"tower_steps": float(trainer.step_count), "tower_loss": trainer.recent_loss}
        self.tower = dict(trainer.model.state_dict())

    def estimate_tower(self) -> int:
        steps = len(self.dataset.users) // self.recall.tower.batch + 1
        return steps * self.recall.tower.epochs * (1 if self._options.grouping.tower_users is None else 100)

    def _tower_trainer(self) -> TowerTrainer:
        if self._trainer is None:
            rows, most = self.rows, self._options.most_rows
            if most is not None and most < len(rows):
                newest = np.arange(len(rows)) if rows.times is None else np.argsort(rows.times, kind="stable")
                rows = rows.take(np.sort(newest[-most:]))
            data, options = replace(self._recall_data(), rows=rows), self._options
            self._trainer = tower_trainer(
                data,
                self.recall,
                options.seed,
                spectral=False,
                piece_elements=options.grouping.piece_elements,
                recompute=options.recompute,
            )
        return self._trainer

    def _recall_data(self) -> RecallData:
        dates = available_from(self.dataset, self.encoder)
        return RecallData(self.encoder, self.users, self.items, self.rows, dates)

    def writing_recall(self) -> list[Task]:
        """Calls of libraries, each one unit: the index's k-means, EASE's inverse and the ONNX export take seconds."""
        return [
            ("writing the encoder and the catalogue", self._write_tables),
            ("building the index", self._write_index),
            ("exporting the towers", self._write_towers),
            ("computing item-to-item", self._write_neighbours),
            ("ranking popular and fresh items", self._write_lists),
        ]

    def _write_tables(self) -> None:
        self.encoder.save(self.draft / "encoder.json")
        pq.write_table(self.dataset.items, self.draft / "items.parquet")
        (self.draft / "recall").mkdir(exist_ok=True)

    def _trained_tower(self) -> TowerTrainer:
        trainer = self._tower_trainer()
        assert self.tower is not None
        trainer.model.load_state_dict(self.tower)
        return trainer

    def _write_index(self) -> None:
        trainer = self._trained_tower()
        wanted = self._settings.recall.index.model_dump()
        spec = IndexSpec.choose(len(self.encoder.item_ids.values), self.recall.tower.dim, **wanted)
        AnnIndex.build(trainer.item_vectors(), spec, self._options.seed).save(self.draft / "recall")
        write_weights(trainer, self.draft / "recall")

    def _write_towers(self) -> None:
        path = self.draft / "models" / "user_tower" / "1" / "model.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        difference = write_user_tower(self._trained_tower(), self._recall_data(), path)
        write_item_tower(self._trained_tower(), self._recall_data(), path.parents[2] / "item_tower" / "1" / path.name)
        self.metrics["recall"]["onnx_difference"] = difference

    def _write_neighbours(self) -> None:
        write_neighbours(self._recall_data(), self.recall, self.draft / "recall")

    def _write_lists(self) -> None:
        write_lists(self._recall_data(), self.recall, self.draft / "recall", self._settings.recall.segment_field)
        self.tower, self._trainer = None, None

    # --- the rankers

    def begin_ranker(self, name: RankerName, resumed: bool) -> RankerFit:
        """Groups the rows, one call of up to seconds for a million of them."""
        data, cut = self._ranker_data(), self._options.grouping
        model = self._new_ranker(name)
        if not resumed and self._old is not None:
            start_from(model, read_weights(self._old[0], name), self._old[1], self.encoder)
        self._fitting = RankerFit(
            model,
            data,
            self.ranking,
            getattr(self.ranking, name),
            self.models["fine"] if name == "coarse" else None,
            cut.valid_groups,
            cut.piece_elements,
            self._options.recompute,
            cut.ranker_parts,
        )
        return self._fitting

    def end_ranker(self, name: RankerName) -> None:
        self.metrics["valid_auc"][name] = self._fitting.finish()
        self.models[name] = self._fitting.trainer.model

    def take_ranker(self, name: RankerName, weights: Mapping[str, Any]) -> None:
        """A trained ranker from a checkpoint."""
        model = self._new_ranker(name)
        model.load_state_dict(dict(weights))
        self.models[name] = model.eval()

    def estimate_ranker(self, name: RankerName) -> int:
        schedule = getattr(self.ranking, name)
        rows = min(len(self.rows), self.ranking.rows or sys.maxsize)
        steps = rows // (schedule.group_rows * schedule.groups) + 1
        return schedule.epochs * steps * (schedule.micro + 8)

    def _ranker_data(self) -> RankData:
        if self._rank_data is None:
            train, valid = map(self.rows.take, train_and_valid(self.dataset, self.ranking.rows))
            view = "others" if self.rows.times is None else "earlier"
            events = self.rows if view == "earlier" else None
            self._rank_data = prepare(self.encoder, self.users, self.items, train, valid, view, events)
        return self._rank_data

    def _new_ranker(self, name: RankerName) -> Model:
        """With the start it has in `ranking.pipeline.train_rankers`: there both draw from one generator in turn."""
        spec, recipe = spec_of(self._ranker_data(), self.ranking), self.ranking
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(recipe.fine.seed)
            fine = FineRanker(spec, recipe.fine_model)
            if name == "fine":
                return fine
            FineRanker(spec, recipe.fine_model)  # the copy that validation scores with
            return CoarseRanker(spec, recipe.coarse_model)

    def writing_rankers(self) -> list[Task]:
        """Item states of the catalogue and two ONNX exports each, which take seconds."""
        return [
            ("exporting the fine ranker", lambda: self._write_ranker("fine")),
            ("exporting the coarse ranker", lambda: self._write_ranker("coarse")),
        ]

    def _write_ranker(self, name: RankerName) -> None:
        outputs = outputs_of(self._ranker_data(), self.ranking)
        TrainedRanker(name, self.models[name], outputs).save(self.draft, self.items)
