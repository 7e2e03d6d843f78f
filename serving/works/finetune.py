"""Fine-tuning as a pool's work: the training of recall and of both rankers, and the release that comes out of it.

Training is cut into units of up to about 5 ms (`Grouping`). These units are longer, as each is one call of
a library or over the whole data: reading and encoding the dataset; setting up the first trainer, with which torch
imports its compiler (3 s); the two-tower's start at singular vectors;
the index's k-means, EASE's inverse, ranked lists and ONNX exports; grouping a ranker's rows, shuffling them at
the start of an epoch, and the AUC of its validation. `Progress.doing` names what is going on.

A unit that trains leaves nothing but arrays behind, so a checkpoint holds weights, optimisers, gathered gradients and
counts; a work restored from it ends with the bits of one that was never interrupted. It first reads the
dataset again.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from configs.errors import ArtifactError
from configs.settings import Settings
from pool.engines.threads import pin_threads
from pool.repository import ReleaseRepository, open_releases
from pool.work import Progress
from serving.works.options import FinetuneOptions
from serving.works.parts import Part, PartList, Tasks, TrainingPart
from serving.works.saved import Saved, check_same, read_state, write_state
from serving.works.sources import Source, fingerprint
from serving.works.training import Training

KIND = "finetune"
DRAFT = "draft"


class FinetuneWork:
    """Implements `pool.work.Work`.

    Args:
        dataset: or its folder, which is read in the first unit.
        folder: for files on the way; on the file system of the checkpoints, files are linked, not copied.
    Raises:
        ConfigError: unknown recipe. NotFound: no release ``start_from``. ArtifactError: it lacks weights to begin
            with. DataError: no dataset in the folder.
    """

    def __init__(self, dataset: Source, settings: Settings, options: FinetuneOptions, folder: Path):
        self._settings, self._options, self._folder = settings, options, folder
        self._identity = {"options": options.model_dump(mode="json"), "dataset": fingerprint(dataset)}
        self._id = uuid.uuid4().hex
        folder.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f"{DRAFT}-", dir=folder))
        self.training = training = Training(dataset, settings, options, draft)
        parts: list[Part] = [
            TrainingPart(
                "training the two-tower",
                training.begin_tower,
                training.estimate_tower,
                lambda run: {"step": run.trainer.step_count, "loss": run.trainer.recent_loss},
                training.end_tower,
            ),
            Tasks(training.writing_recall()),
            *(
                TrainingPart(
                    f"training the {name} ranker",
                    partial(training.begin_ranker, name),
                    partial(training.estimate_ranker, name),
                    lambda run: {"step": run.trainer.step_count, "loss": run.trainer.recent_loss},
                    partial(training.end_ranker, name),
                )
                for name in ("fine", "coarse")
            ),
            Tasks(training.writing_rankers()),
        ]
        self._parts = PartList(Tasks(training.reading()), parts, self._take_over)

    def step(self, units: int) -> int:
        pin_threads(self._options.threads)
        return self._parts.step(units)

    def progress(self) -> Progress:
        return self._parts.progress()

    def save(self, folder: Path) -> None:
        saved = self._parts.resumed
        if saved is None:
            training = self.training
            values = {**self._identity, **self._parts.position(), "id": self._id, "metrics": training.metrics}
            models = {name: model.state_dict() for name, model in training.models.items()}
            saved = Saved(values, {"part": self._parts.state(), "tower": training.tower, "models": models})
        _link_tree(self.training.draft, folder / DRAFT)
        write_state(folder, KIND, saved)

    def restore(self, folder: Path) -> None:
        """Take a checkpoint over; call it before the first unit.

        The dataset is read in the first units, and what the checkpoint holds is taken up after them.
        """
        saved = read_state(folder, KIND)
        check_same(folder, saved.values, self._identity)
        self._parts.resume(saved)
        shutil.rmtree(self.training.draft, ignore_errors=True)
        _link_tree(folder / DRAFT, self.training.draft)
        self._id = saved.values["id"]

    def result(self) -> Mapping[str, Any]:
        """Publish the release, once however often it is asked; returns its version and figures."""
        assert self._parts.done, "not trained to the end"
        training, repository = self.training, open_releases(self._settings)
        describe = {
            "dataset": training.dataset.name,
            "recipe": self._options.recipe,
            "items": len(training.encoder.item_ids.values),
            "users": len(training.encoder.user_ids.values),
            "objectives": training.objectives,
            "metrics": {**training.metrics, "finetune": self._id},
        }
        version = _published(repository, self._id)
        if version is None:
            with repository.draft(describe) as draft:
                _link_tree(training.draft, draft.folder)
            version = draft.version
        for scratch in self._folder.glob(f"{DRAFT}-*"):
            shutil.rmtree(scratch, ignore_errors=True)
        return {"version": version, "start_from": self._options.start_from, "metrics": training.metrics}

    def _take_over(self, saved: Saved) -> None:
        training, tensors = self.training, saved.tensors
        training.metrics, training.tower = saved.values["metrics"], tensors["tower"]
        for name in ("fine", "coarse"):
            if name in tensors["models"]:
                training.take_ranker(name, tensors["models"][name])


def _published(repository: ReleaseRepository, work: str) -> str | None:
    """The version that this work has published before it was interrupted."""
    for version in reversed(repository.versions()):
        try:
            if repository.manifest(version).metrics.get("finetune") == work:
                return version
        except ArtifactError:  # another release's damage is not this one's
            continue
    return None


def _link_tree(source: Path, target: Path) -> None:
    """The same files below another folder; finished files never change, so they may share their bytes."""
    target.mkdir(parents=True, exist_ok=True)
    for path in source.rglob("*") if source.is_dir() else ():
        place = target / path.relative_to(source)
        if path.is_dir():
            place.mkdir(parents=True, exist_ok=True)
            continue
        place.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, place)
        except OSError:  # another file system, or one without links
            shutil.copy2(path, place)
