"""From interactions to the two trained rankers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from configs.errors import DataError
from features.datasets import IndexedInteractions
from features.encoding import PADDING, Encoder, ItemBatch, UserBatch
from features.metrics import auc
from pool.engines.split_adam import PIECE_ELEMENTS
from ranking.calibration import Scaling, platt
from ranking.coarse import CoarseRanker
from ranking.fine import FineRanker
from ranking.graphs import Outputs
from ranking.groups import GroupedRows, View
from ranking.inputs import Fields, InputSpec
from ranking.recipes import Recipe, Schedule
from ranking.scoring import Model, Scoring, score_rows
from ranking.store import TrainedRanker
from ranking.training import RankTrainer, value_stats

Report = Callable[[str, int, int], None]
"""Progress: (stage, steps done, steps in all)."""


@dataclass(frozen=True)
class RankData:
    """What rankers learn from.

    users, items: encoded tables by index, [users + 2] and [items + 2] rows. train, valid: rows, which
    carry their own context; without one a row keeps the imputed context of ``users``.
    events: what histories are made of; train alone when ``view`` is "others", so that no validation
    or test row is seen; under "earlier" it may be all rows, as each sees only what came before it.
    """

    spec: InputSpec
    users: Fields
    items: Fields
    train: IndexedInteractions
    valid: IndexedInteractions
    events: IndexedInteractions
    view: View

    def rows(self, part: IndexedInteractions, length: int, size: int) -> GroupedRows:
        return GroupedRows(part, self.train if part is self.train else self.events, length, size, self.view)

    def score(self, model: Model, part: IndexedInteractions) -> np.ndarray:
        """Logits [n, O] of rows, each with the history it may see."""
        return score_rows(model, self.users, self.items, self.scored_rows(part, model.spec.history))

    def scored_rows(self, part: IndexedInteractions, length: int) -> GroupedRows:
        # Rows of one group share a window; under "earlier" rows far apart in time must not.
        return self.rows(part, length, 1 if self.view == "earlier" else 16)


@dataclass(frozen=True)
class Rankers:
    """Both rankers with the validation AUC of each (of "like", or of "engage" where there are no values)."""

    fine: TrainedRanker
    coarse: TrainedRanker
    valid_auc: dict[str, float]


def user_table(encoder: Encoder, users: pa.Table) -> UserBatch:
    """Encode all users as a table by index, [users + 2] rows; the two first rows are imputed."""
    batch = encoder.encode_users([{}, {}, *users.to_pylist()])
    batch.cat[PADDING] = PADDING
    return batch


def objectives_of(train: IndexedInteractions, engage: bool = True) -> tuple[str, ...]:
    """Objectives the data can teach; without values only "engage"."""
    if not np.isfinite(train.values).any():
        return ("engage",)
    return ("engage", "like", "rating") if engage else ("like", "rating")


def prepare(
    encoder: Encoder,
    users: UserBatch,
    items: ItemBatch,
    train: IndexedInteractions,
    valid: IndexedInteractions,
    view: View,
    events: IndexedInteractions | None = None,
) -> RankData:
    """Check and bundle; raises DataError when there is nothing to learn from."""
    if not len(train):
        raise DataError("no training interactions; ingest some, or check the protocol's conditions")
    if view == "earlier" and train.times is None:
        raise DataError("histories of earlier events need timestamps; use the view 'others'")
    spec, fields = InputSpec.from_encoder(encoder), (Fields.of(users), Fields.of(items))
    return RankData(spec, *fields, train, valid, train if events is None else events, view)


def train_rankers(data: RankData, recipe: Recipe, report: Report = lambda *_: None) -> Rankers:
    """Train the fine ranker, then the coarse one from labels and the fine one's scores."""
    outputs = outputs_of(data, recipe)
    torch.manual_seed(recipe.fine.seed)
    spec = spec_of(data, recipe)
    fine = FineRanker(spec, recipe.fine_model)
    fine_auc = fit(fine, data, recipe, recipe.fine, "fine", report)
    coarse = CoarseRanker(spec, recipe.coarse_model)
    coarse_auc = fit(coarse, data, recipe, recipe.coarse, "coarse", report, teacher=fine)
    return Rankers(
        TrainedRanker("fine", fine, outputs),
        TrainedRanker("coarse", coarse, outputs),
        {"fine": fine_auc, "coarse": coarse_auc},
    )


def outputs_of(data: RankData, recipe: Recipe) -> Outputs:
    """What the scores of rankers trained on the data mean."""
    values = data.train.values[np.isfinite(data.train.values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    return Outputs(recipe.fine_model.objectives, *value_stats(data.train.values), low, high)


def spec_of(data: RankData, recipe: Recipe) -> InputSpec:
    """Inputs of the rankers, with no longer a history than the recipe's."""
    return replace(data.spec, history=min(recipe.history, data.spec.history))


def fit(
    model: Model,
    data: RankData,
    recipe: Recipe,
    schedule: Schedule,
    stage: str,
    report: Report = lambda *_: None,
    teacher: Model | None = None,
) -> float:
    """Train until the schedule ends or validation stops improving; leaves the best averaged weights in the model.

    Its logits of "like" are log-odds on the validation rows (`ranking.calibration`).
    """
    run = RankerFit(model, data, recipe, schedule, teacher)
    while not run.done:
        run.unit()
        report(stage, run.trainer.step_count, run.trainer.total_steps)
    return run.finish()


class RankerFit:
    """`fit` in units: those of its trainer, or some groups of validation.

    Args:
        valid_groups: groups of validation rows that one unit scores.
        piece_elements, recompute, parts: as for `RankTrainer`.
    """

    def __init__(
        self,
        model: Model,
        data: RankData,
        recipe: Recipe,
        schedule: Schedule,
        teacher: Model | None = None,
        valid_groups: int = 256,
        piece_elements: int = PIECE_ELEMENTS,
        recompute: bool = False,
        parts: bool = False,
    ):
        self.data = data
        rows = data.rows(data.train, model.spec.history, schedule.group_rows)
        self.trainer = RankTrainer(
            model, data.users, data.items, rows, recipe, schedule, teacher, piece_elements, recompute, parts
        )
        self._shadow = type(model)(model.spec, model.config)  # type: ignore[arg-type]
        self._validation = Validation(self._shadow, data, recipe, valid_groups)
        self._best, self._best_auc, self._waited = self.trainer.averaged(), -np.inf, 0
        self._best_scaling = Scaling()
        self._epoch, self._place = 0, -1
        self.done = schedule.epochs == 0

    @property
    def total_units(self) -> int:
        """Without an early end."""
        return self.trainer.total_units + self.trainer.schedule.epochs * (self._validation.total + 1)

    @property
    def unit_count(self) -> int:
        validated = self._epoch * (self._validation.total + 1) + max(0, self._place)
        return self.total_units if self.done else self.trainer.unit_count + validated

    @property
    def validating(self) -> bool:
        return self._place >= 0

    def unit(self) -> None:
        trainer = self.trainer
        if not self.validating:
            trainer.unit()
            if not trainer.moving and trainer.step_count == (self._epoch + 1) * trainer.steps_per_epoch:
                self._validate()
        elif self._place < self._validation.total:
            self._validation.unit(self._place)
            self._place += 1
        else:
            self._judge()

    def finish(self) -> float:
        """Leave the best weights in the model, with calibrated logits; returns their validation AUC."""
        model = self.trainer.model
        model.load_state_dict(self._best)
        model.eval()
        if self._best_scaling != Scaling():
            model.rescale(model.config.objectives.index("like"), *self._best_scaling)
        return self._best_auc

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs; loads with ``torch.load(weights_only=True)``."""
        return {
            "trainer": self.trainer.state_dict(),
            "best": self._best,
            "best_auc": float(self._best_auc),
            "best_scaling": list(self._best_scaling),
            "counts": [self._waited, self._epoch, self._place, int(self.done)],
            "logits": [torch.from_numpy(scoring.out) for scoring in self._validation.passes],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.trainer.load_state_dict(state["trainer"])
        self._best, self._best_auc = {name: t.clone() for name, t in state["best"].items()}, state["best_auc"]
        self._best_scaling = Scaling(*state["best_scaling"])
        self._waited, self._epoch, self._place, done = state["counts"]
        self.done = bool(done)
        for scoring, logits in zip(self._validation.passes, state["logits"], strict=True):
            scoring.out[:] = logits.numpy()
        if self.validating:
            self._shadow.load_state_dict(self.trainer.averaged())

    def _validate(self) -> None:
        self._shadow.load_state_dict(self.trainer.averaged())
        self._place = 0

    def _judge(self) -> None:
        """Keep the averaged weights if they are the best so far, and decide whether to go on."""
        found = self._validation.auc()
        self._waited = 0 if found > self._best_auc else self._waited + 1
        if found > self._best_auc or not np.isfinite(found):
            self._best, self._best_auc = self.trainer.averaged(), found
            self._best_scaling = self._validation.scaling()
        self._epoch, self._place = self._epoch + 1, -1
        self.done = self._waited > self.trainer.schedule.patience or self._epoch == self.trainer.schedule.epochs


class Validation:
    """AUC of "like" on the validation rows; of "engage" against one drawn item a row where there is no "like"."""

    def __init__(self, model: Model, data: RankData, recipe: Recipe, groups: int = 256):
        self._names, self._values, self._like_at = model.config.objectives, data.valid.values, recipe.like_at
        parts = [data.valid]
        if "like" not in self._names:
            drawn = np.random.default_rng(0).integers(2, len(data.items.cat), len(data.valid)).astype(np.int32)
            parts.append(replace(data.valid, items=drawn))
        rows = [data.scored_rows(part, model.spec.history) for part in parts if len(part)]
        self.passes = [Scoring(model, data.users, data.items, part, groups) for part in rows]
        self.total = sum(scoring.total for scoring in self.passes)

    def unit(self, place: int) -> None:
        """Score some groups; ``place`` is below ``total``."""
        for scoring in self.passes:
            if place < scoring.total:
                return scoring.unit(place)
            place -= scoring.total
        raise AssertionError("past the last unit")

    def scaling(self) -> Scaling:
        """What makes the logits of "like" log-odds; none where nothing is known of likes."""
        if not self.passes or "like" not in self._names:
            return Scaling()
        known = np.isfinite(self._values)
        logits = self.passes[0].out[:, self._names.index("like")]
        return platt(self._values[known] >= self._like_at, logits[known])

    def auc(self) -> float:
        """Of all logits; NaN without validation rows."""
        if not self.passes:
            return float("nan")
        if "like" in self._names:
            return auc(self._values >= self._like_at, self.passes[0].out[:, self._names.index("like")])
        k = self._names.index("engage")
        of_rows, of_drawn = (scoring.out[:, k] for scoring in self.passes)
        return auc(np.repeat([True, False], len(of_rows)), np.concatenate([of_rows, of_drawn]))
