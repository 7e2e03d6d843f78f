"""Offline metrics of releases on the held-out events, and a comparison of what they answer, as a pool's work.

No ranker has trained on these events, but recall has: its figures are flattering, and can be compared as far as
the releases were trained on the same events.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from configs.errors import ConfigError, NotFound
from configs.settings import STAGES, Settings
from features.datasets import Dataset, IndexedInteractions
from features.metrics import auc, calibration_error, ndcg_at_k, recall_at_k
from pool.repository import ReleaseRepository, open_releases
from pool.work import Progress
from ranking.pipeline import prepare, user_table
from ranking.scoring import Scoring
from ranking.store import TrainedRanker
from serving.preparation import Row
from serving.release import Release
from serving.stages import stage_threads
from serving.works.asking import Asker, deadline_s, patient
from serving.works.holdout import Holdout, HoldoutStore
from serving.works.options import EvaluateOptions
from serving.works.parts import Part, PartList, Tasks, Tensors, TrainingPart
from serving.works.saved import Saved, check_same, read_state, write_state
from serving.works.sources import Source, fingerprint, read

KIND = "evaluate"
SCORED_GROUPS = 4
FUNNELS: dict[str, tuple[str, ...]] = {"recall": ("recall",), "cascade": STAGES}
RankerName = Literal["fine", "coarse"]


class EvaluateWork:
    """Implements `pool.work.Work`. A unit asks for some users' slates, or scores some groups of rows.

    Reading, which takes seconds, is done by every process for itself: the dataset and the releases. Longer than a
    few milliseconds are also the indexing of the held-out rows for a ranker, and the AUC.

    Raises:
        NotFound: no such release. ConfigError: a release is named twice. DataError: no dataset in the folder.
    """

    def __init__(self, dataset: Source, settings: Settings, options: EvaluateOptions):
        self._source, self._settings, self._options = dataset, patient(settings), options
        self._repository = open_releases(settings)
        self.versions = _versions(self._repository, options.versions)
        self._identity = {
            "options": options.model_dump(mode="json"), "versions": self.versions, "dataset": fingerprint(dataset)
        }  # fmt: skip
        self._executor = stage_threads(settings.ranking.threads)
        self._askers: dict[str, Asker] = {}
        self._slates = {f"{version} {funnel}": _Slates() for version in self.versions for funnel in FUNNELS}
        self._auc: dict[str, dict[str, float]] = {version: {} for version in self.versions}
        self._calibration: dict[str, dict[str, float]] = {version: {} for version in self.versions}
        reading = [("reading the dataset", self._read), ("choosing the users", self._choose)]
        for version in self.versions:
            reading.append((f"loading release {version}", partial(self._load, version)))
            reading += [(f"loading release {version}", partial(self._load_stage, version, name)) for name in STAGES]
        parts: list[Part] = [self._asking(version, funnel) for version in self.versions for funnel in FUNNELS]
        parts += [self._scoring(version, name) for version in self.versions for name in ("fine", "coarse")]
        self._parts = PartList(Tasks(reading), parts, self._take_over)

    def step(self, units: int) -> int:
        return self._parts.step(units)

    def progress(self) -> Progress:
        return self._parts.progress()

    def save(self, folder: Path) -> None:
        saved = self._parts.resumed
        if saved is None:
            values = {**self._identity, **self._parts.position(), "auc": self._auc, "calibration": self._calibration}
            slates = {name: part.items for name, part in self._slates.items() if part.items.size}
            saved = Saved(values, {"part": self._parts.state()}, slates)
        write_state(folder, KIND, saved)

    def restore(self, folder: Path) -> None:
        """Take a checkpoint over; call it before the first unit."""
        saved = read_state(folder, KIND)
        check_same(folder, saved.values, self._identity)
        self._parts.resume(saved)

    def result(self) -> Mapping[str, Any]:
        """Figures of each release, and of each pair: mean share of common items, and of users with equal slates."""
        assert self._parts.done, "not evaluated to the end"
        pairs = {f"{a} {b}": self._compared(a, b) for a, b in combinations(self.versions, 2)}
        releases = {version: self._figures(version) for version in self.versions}
        return {"users": len(self._holdout.users), "releases": releases, "pairs": pairs}

    def close(self) -> None:
        """Let go of the threads and the event loops."""
        for asker in self._askers.values():
            asker.close()
        self._executor.shutdown()

    # --- reading

    def _read(self) -> None:
        self._dataset: Dataset = read(self._source)

    def _choose(self) -> None:
        self._holdout = Holdout.of(self._dataset, self._options.users, self._options.seed)
        self._store = HoldoutStore(self._dataset, self._holdout, self._settings.store.history_limit, time.time())
        # Places in the catalogue of the dataset: releases may count their items differently.
        ids = self._dataset.items.column("item_id").to_pylist()
        self._place_of = {item: place for place, item in enumerate(ids)}
        for part in self._slates.values():
            part.items = np.full((len(self._holdout.users), self._options.k), -1, np.int64)

    def _load(self, version: str) -> None:
        self._askers[version] = Asker(Release.load(self._repository, version), self._settings, self._executor)

    def _load_stage(self, version: str, name: str) -> None:
        self._askers[version].load(name)

    def _take_over(self, saved: Saved) -> None:
        for name, items in saved.arrays.items():
            self._slates[name].items = items
        self._auc, self._calibration = (
            {version: dict(found) for version, found in saved.values[name].items()} for name in ("auc", "calibration")
        )

    # --- slates

    def _asking(self, version: str, funnel: str) -> TrainingPart:
        def begin(resumed: bool) -> _Asking:
            return _Asking(self, version, funnel)

        units = -(-self._options.users // self._options.batch)
        return TrainingPart(f"asking the {funnel} of {version}", begin, lambda: units, lambda run: {}, lambda: None)

    def answer(self, version: str, funnel: str, at: int) -> None:
        """Ask for the slates of the next users from place ``at`` on."""
        asker, options = self._askers[version], self._options
        users = self._holdout.users[at : at + options.batch]
        rows = [Row(deadline_s(), k=options.k, user_id=user) for user in users]
        slates = asker.ask(asker.cascade(self._store, FUNNELS[funnel]), rows)
        value = asker.release.encoder.item_ids.value
        out = self._slates[f"{version} {funnel}"].items
        for place, slate in enumerate(slates, at):
            found = [self._place_of.get(value(int(item)), -1) for item in slate.items]
            out[place, : len(found)] = found

    @property
    def asked_units(self) -> int:
        return -(-len(self._holdout.users) // self._options.batch)

    @property
    def batch(self) -> int:
        return self._options.batch

    def _figures(self, version: str) -> dict[str, Any]:
        relevant = [np.array([self._place_of.get(i, -2) for i in items]) for items in self._holdout.relevant]
        k, figures = self._options.k, {}
        for funnel in FUNNELS:
            slates = self._slates[f"{version} {funnel}"].items
            figures[funnel] = {
                f"recall@{k}": recall_at_k(slates, relevant), f"ndcg@{k}": ndcg_at_k(slates, relevant)
            }  # fmt: skip
        return {**figures, "auc": self._auc[version], "calibration_error": self._calibration[version]}

    def _compared(self, one: str, other: str) -> dict[str, float]:
        a, b = (self._slates[f"{version} cascade"].items for version in (one, other))
        common = [len(set(x[x >= 0]) & set(y[y >= 0])) / self._options.k for x, y in zip(a, b, strict=True)]
        return {
            f"overlap@{self._options.k}": float(np.mean(common)),
            "equal_share": float(np.mean((a == b).all(1))),
        }

    # --- values

    def _scoring(self, version: str, name: RankerName) -> TrainingPart:
        def begin(resumed: bool) -> _Scored:
            return _Scored(self._scorings(version, name))

        def estimate() -> int:
            return min(len(self._holdout.rows), self._options.most_rows) // SCORED_GROUPS

        doing = f"scoring with the {name} ranker of {version}"
        part = TrainingPart(doing, begin, estimate, lambda run: {}, lambda: self._judge(version, name))
        self._scored: Scoring | None = None
        return part

    def _scorings(self, version: str, name: RankerName) -> Scoring | None:
        """The held-out rows before the ranker; None where there are no values, or it does not tell likes."""
        release = self._askers[version].release
        ranker = TrainedRanker.load(release.folder, name)
        self._scored, self._labels = None, np.zeros(0, bool)
        if not self._dataset.has_values or "like" not in ranker.model.config.objectives:
            return None
        rows = IndexedInteractions.build(self._dataset, release.encoder)
        held = np.sort(self._holdout.rows[-self._options.most_rows :])
        train = rows.take(np.setdiff1d(np.arange(len(rows)), self._holdout.rows))
        view = "others" if rows.times is None else "earlier"
        tables = user_table(release.encoder, self._dataset.users), release.encoder.item_table(self._dataset.items)
        events = rows if view == "earlier" else None
        data = prepare(release.encoder, *tables, train, rows.take(held), view, events)
        grouped = data.scored_rows(data.valid, ranker.model.spec.history)
        self._scored = Scoring(ranker.model, data.users, data.items, grouped, SCORED_GROUPS)
        liked = self._dataset.schema.history.positive_at
        self._labels = data.valid.values >= (4.0 if liked is None else liked)
        self._column = ranker.model.config.objectives.index("like")
        return self._scored

    def _judge(self, version: str, name: RankerName) -> None:
        if self._scored is not None:
            logits = self._scored.out[:, self._column].astype(np.float64)
            self._auc[version][name] = auc(self._labels, logits)
            self._calibration[version][name] = calibration_error(self._labels, 1 / (1 + np.exp(-logits)))


class _Slates:
    """Places in the catalogue [users, k] int64, -1 where a slate is short."""

    def __init__(self) -> None:
        self.items = np.zeros((0, 0), np.int64)


class _Asking:
    """The users of one release and funnel, some a unit."""

    def __init__(self, work: EvaluateWork, version: str, funnel: str):
        self._work, self._version, self._funnel = work, version, funnel
        self.total_units, self.unit_count = work.asked_units, 0

    @property
    def done(self) -> bool:
        return self.unit_count == self.total_units

    def unit(self) -> None:
        self._work.answer(self._version, self._funnel, self.unit_count * self._work.batch)
        self.unit_count += 1

    def state_dict(self) -> Tensors:
        return {"count": self.unit_count}

    def load_state_dict(self, state: Tensors) -> None:
        self.unit_count = state["count"]


class _Scored:
    """The rows of a scoring, some groups a unit; without one it is done at once."""

    def __init__(self, scoring: Scoring | None):
        self._scoring, self.unit_count = scoring, 0
        self.total_units = scoring.total if scoring else 0

    @property
    def done(self) -> bool:
        return self.unit_count == self.total_units

    def unit(self) -> None:
        assert self._scoring is not None
        self._scoring.unit(self.unit_count)
        self.unit_count += 1

    def state_dict(self) -> Tensors:
        return {"count": self.unit_count, "logits": torch.from_numpy(self._scoring.out) if self._scoring else None}

    def load_state_dict(self, state: Tensors) -> None:
        self.unit_count = state["count"]
        if self._scoring is not None:
            self._scoring.out[:] = state["logits"].numpy()


def _versions(repository: ReleaseRepository, wanted: tuple[str, ...]) -> list[str]:
    champion = repository.champion()
    chosen = list(wanted) or ([champion] if champion else [])
    if not chosen:
        raise NotFound("no release serves; name versions, or run `recpool train`")
    if len(set(chosen)) < len(chosen):
        raise ConfigError(f"versions: {chosen} names a release twice")
    for version in chosen:
        repository.path(version)
    return chosen
