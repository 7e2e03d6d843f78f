"""Offline evaluation under published protocols, with the models and the cascade that serve."""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from configs.errors import ConfigError
from configs.settings import STAGES, Settings, build_settings
from features.datasets import Dataset, IndexedInteractions
from features.encoding import Encoder
from features.metrics import auc, log_loss, ndcg_at_k, recall_at_k
from features.protocols import PROTOCOLS, Split
from features.schema import ITEM_ID, TIME
from features.store import open_store
from pool.repository import open_releases
from ranking.pipeline import RankData, Rankers, objectives_of, prepare, train_rankers, user_table
from ranking.recipes import recipe_named
from serving.build import Progress, build_release, silent
from serving.cascade import Cascade
from serving.hydration import Hydrator
from serving.preparation import Row
from serving.release import Release
from serving.stages import InPlace, load_stage, stage_threads
from serving.types import StageCaller
from serving.works.asking import patient

K = 10
BATCH = 32


def evaluate(dataset: Dataset, protocol: str, recipe: str, progress: Progress = silent) -> dict[str, Any]:
    """Train under a protocol's split and measure on its test part.

    Returns:
        For ``ctr-random`` and ``ctr-time``: AUC and log loss of the fine and the coarse ranker's
        "like". For ``topn``: recall@10 and NDCG@10 of the recall stage alone and of the cascade.
    Raises:
        ConfigError: unknown protocol or recipe. DataError: the data lacks what the protocol needs.
    """
    if protocol not in PROTOCOLS:
        raise ConfigError(f"no protocol {protocol!r}; known protocols: {sorted(PROTOCOLS)}")
    started = time.monotonic()
    split = PROTOCOLS[protocol](dataset)
    measure = _topn if protocol == "topn" else _ctr
    figures = measure(dataset, split, protocol, recipe, progress)
    rows = {"all": split.rows, "train": len(split.train), "valid": len(split.valid), "test": len(split.test)}
    return {
        "protocol": protocol, "recipe": recipe, "rows": rows, **figures, "seconds": round(time.monotonic() - started, 1)
    }  # fmt: skip


def _ctr(dataset: Dataset, split: Split, protocol: str, recipe_name: str, progress: Progress) -> dict[str, Any]:
    data, test = ctr_data(dataset, split, protocol)
    recipe = recipe_named(recipe_name)
    rankers = train_rankers(data, recipe.with_objectives(*objectives_of(data.train, engage=False)), _steps(progress))
    labels = test.values >= recipe.like_at
    return {name: _ctr_figures(rankers, data, name, test, labels) for name in ("fine", "coarse")}


def ctr_data(dataset: Dataset, split: Split, protocol: str) -> tuple[RankData, IndexedInteractions]:
    """What rankers may learn from under a click-through protocol, and the test rows.

    Under ``ctr-random`` histories hold a user's other training rows; under ``ctr-time`` whatever
    came strictly before the row.
    """
    encoder = Encoder.fit(dataset.schema, dataset.users, dataset.items, dataset.interactions)
    rows = IndexedInteractions.build(dataset, encoder)
    train, valid, test = (rows.take(part) for part in (split.train, split.valid, split.test))
    by_time = protocol == "ctr-time"
    events = rows.take(np.sort(np.concatenate([split.train, split.valid, split.test]))) if by_time else None
    tables = user_table(encoder, dataset.users), encoder.item_table(dataset.items)
    return prepare(encoder, *tables, train, valid, "earlier" if by_time else "others", events), test


def _ctr_figures(
    rankers: Rankers, data: RankData, name: str, test: IndexedInteractions, labels: np.ndarray
) -> dict[str, float]:
    model = getattr(rankers, name).model
    logits = data.score(model, test)[:, model.config.objectives.index("like")]
    probabilities = 1 / (1 + np.exp(-logits.astype(np.float64)))
    return {
        "auc": auc(labels, logits),
        "log_loss": log_loss(labels, probabilities),
        "valid_auc": rankers.valid_auc[name],
    }


def _topn(dataset: Dataset, split: Split, protocol: str, recipe: str, progress: Progress) -> dict[str, Any]:
    with TopN.build(dataset, split, recipe, progress) as topn:
        recall = topn.measure(topn.cascade(skip=("coarse", "fine")), "recall stage", progress)
        cascade = topn.measure(topn.cascade(), "cascade", progress)
    return {"recall": recall.figures(), "cascade": cascade.figures(), "users": len(topn.users)}


@dataclass(frozen=True)
class Measured:
    """Slates [U, K] item indices (0 where short) of the test users, and the seconds they took."""

    ranked: np.ndarray
    relevant: list[np.ndarray]
    seconds: float

    def figures(self) -> dict[str, float]:
        return {
            f"recall@{K}": recall_at_k(self.ranked, self.relevant),
            f"ndcg@{K}": ndcg_at_k(self.ranked, self.relevant),
            "ms_per_user": 1000 * self.seconds / max(1, len(self.ranked)),
        }


class TopN:
    """A release trained on the training part, and the cascade asked for every test user's slate.

    Training rows are what the feature store holds, so they are history and excluded as seen; validation
    items are excluded too.
    """

    def __init__(self, folder: tempfile.TemporaryDirectory, settings: Settings, dataset: Dataset, split: Split):
        repository = open_releases(settings)
        self.release = Release.load(repository, repository.versions()[-1])
        self.settings, self._folder = settings, folder
        self._store = open_store(settings.store, settings.store_folder)
        self._store.load(dataset.take(np.sort(split.train)))
        rows = IndexedInteractions.build(dataset, self.release.encoder)
        self._held_out = rows.take(split.valid).histories()
        test = rows.take(split.test)
        self.users = np.unique(test.users)
        self.relevant = _grouped(test, self.users)
        self._executor = stage_threads(settings.ranking.threads)

    @classmethod
    def build(cls, dataset: Dataset, split: Split, recipe: str, progress: Progress = silent) -> TopN:
        """Train and publish into a scratch repository, then load it as serving does."""
        kept = np.concatenate([split.train, split.valid, split.test])
        used = set(dataset.interactions.column(ITEM_ID).take(np.sort(kept)).unique().to_pylist())
        known = dataset.items.filter(pa.array([item in used for item in dataset.items.column(ITEM_ID).to_pylist()]))
        # The split is random, so test rows may lie before training rows: time must play no part.
        untimed = dataset.interactions.set_column(
            dataset.interactions.column_names.index(TIME), TIME, pa.nulls(len(dataset.interactions), pa.float64())
        )
        dataset = replace(dataset, items=known, interactions=untimed)
        folder = tempfile.TemporaryDirectory(prefix="recpool-topn-")
        settings = patient(build_settings({"home": Path(folder.name), "dataset": "topn"}))
        build_release(dataset.take(np.sort(split.train)), settings, recipe, progress)
        return cls(folder, settings, dataset, split)

    def __enter__(self) -> TopN:
        return self

    def __exit__(self, *_: object) -> None:
        self._executor.shutdown()
        self._store.close()
        self._folder.cleanup()

    def stage(self, name: str) -> StageCaller:
        return InPlace(load_stage(name, self.release, self.settings, self._executor))

    def cascade(self, skip: Sequence[str] = (), recall: StageCaller | None = None, **ranking: Any) -> Cascade:
        """The cascade as it serves, with some stages done without.

        Args:
            recall: stands in for the recall stage.
            ranking: fields of `RankingSettings` that differ from the settings'.
        """
        callers = {name: self.stage(name) for name in STAGES if name not in skip}
        if recall is not None:
            callers["recall"] = recall
        hydrator = Hydrator(self._store, self.release.encoder, self.settings.store, self._executor)
        changed = self.settings.ranking.model_copy(update=ranking)
        return Cascade(self.release, callers, hydrator, self.settings.recall, changed)

    def measure(
        self,
        cascade: Cascade,
        stage: str = "cascade",
        progress: Progress = silent,
        users: int | None = None,
        batch: int = BATCH,
    ) -> Measured:
        """Ask for the slates of the first ``users`` test users, or of all, ``batch`` at a time."""
        chosen = self.users[:users]
        started = time.monotonic()
        ranked = asyncio.run(self._ask(cascade, chosen, batch, lambda done: progress(f"asking the {stage}", done)))
        return Measured(ranked, self.relevant[: len(chosen)], time.monotonic() - started)

    async def _ask(self, cascade: Cascade, users: np.ndarray, batch: int, told: Callable[[float], None]) -> np.ndarray:
        ranked = np.zeros((len(users), K), np.int32)
        for at in range(0, len(users), batch):
            rows = [self._row(user) for user in users[at : at + batch]]
            for place, slate in enumerate(await cascade.recommend(rows), at):
                assert not slate.trace.degraded, f"a degraded answer measures nothing: {slate.trace.degraded}"
                ranked[place, : len(slate.items)] = slate.items
            told(min(1.0, (at + batch) / len(users)))
        return ranked

    def _row(self, user: int) -> Row:
        excluded, _ = self._held_out.latest(np.array([user]), 1_000)
        return Row(
            deadline_s=time.monotonic() + 3600,
            k=K,
            user_id=self.release.encoder.user_ids.value(user),
            excluded=excluded[excluded > 0],
        )


def _grouped(rows: IndexedInteractions, users: np.ndarray) -> list[np.ndarray]:
    """Items of each user, in the order of ``users``."""
    order = np.argsort(rows.users, kind="stable")
    starts = np.searchsorted(rows.users[order], users)
    return np.split(rows.items[order], starts[1:])


def _steps(progress: Progress) -> Callable[[str, int, int], None]:
    return lambda stage, done, total: progress(f"training the {stage} ranker", done / max(1, total))
