"""From interactions to the two trained rankers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import torch

from configs.errors import DataError
from features.datasets import IndexedInteractions
from features.encoding import PADDING, Encoder, ItemBatch, UserBatch
from features.metrics import auc
from ranking.coarse import CoarseRanker
from ranking.fine import FineRanker
from ranking.graphs import Outputs
from ranking.groups import GroupedRows, View
from ranking.inputs import Fields, InputSpec
from ranking.recipes import Recipe, Schedule
from ranking.store import TrainedRanker
from ranking.training import Model, RankTrainer, score_rows, value_stats

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
        # Rows of one group share a window; under "earlier" rows far apart in time must not.
        size = 1 if self.view == "earlier" else 16
        return score_rows(model, self.users, self.items, self.rows(part, model.spec.history, size))


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
    values = data.train.values[np.isfinite(data.train.values)]
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    outputs = Outputs(recipe.fine_model.objectives, *value_stats(data.train.values), low, high)
    torch.manual_seed(recipe.fine.seed)
    spec = replace(data.spec, history=min(recipe.history, data.spec.history))
    fine = FineRanker(spec, recipe.fine_model)
    fine_auc = fit(fine, data, recipe, recipe.fine, "fine", report)
    coarse = CoarseRanker(spec, recipe.coarse_model)
    coarse_auc = fit(coarse, data, recipe, recipe.coarse, "coarse", report, teacher=fine)
    return Rankers(
        TrainedRanker("fine", fine, outputs),
        TrainedRanker("coarse", coarse, outputs),
        {"fine": fine_auc, "coarse": coarse_auc},
    )


def fit(
    model: Model,
    data: RankData,
    recipe: Recipe,
    schedule: Schedule,
    stage: str,
    report: Report = lambda *_: None,
    teacher: Model | None = None,
) -> float:
    """Train until the schedule ends or validation stops improving; leaves the best averaged weights in the model."""
    rows = data.rows(data.train, model.spec.history, schedule.group_rows)
    trainer = RankTrainer(model, data.users, data.items, rows, recipe, schedule, teacher)
    shadow = type(model)(model.spec, model.config)  # type: ignore[arg-type]
    best, best_auc, waited = trainer.averaged(), -np.inf, 0
    for _ in range(schedule.epochs):
        for _ in range(trainer.steps_per_epoch):
            trainer.step()
            report(stage, trainer.step_count, trainer.total_steps)
        shadow.load_state_dict(trainer.averaged())
        found = validation_auc(shadow, data, recipe)
        waited = 0 if found > best_auc else waited + 1
        if found > best_auc or not np.isfinite(found):
            best, best_auc = trainer.averaged(), found
        if waited > schedule.patience:
            break
    model.load_state_dict(best)
    model.eval()
    return best_auc


def validation_auc(model: Model, data: RankData, recipe: Recipe) -> float:
    """AUC of "like" on the validation rows; of "engage" against one drawn item a row where there is no "like"."""
    names = model.config.objectives
    if not len(data.valid):
        return float("nan")
    logits = data.score(model, data.valid)
    if "like" in names:
        return auc(data.valid.values >= recipe.like_at, logits[:, names.index("like")])
    drawn = np.random.default_rng(0).integers(2, len(data.items.cat), len(data.valid)).astype(np.int32)
    against = data.score(model, replace(data.valid, items=drawn))
    k = names.index("engage")
    labels = np.repeat([True, False], len(drawn))
    return auc(labels, np.concatenate([logits[:, k], against[:, k]]))
