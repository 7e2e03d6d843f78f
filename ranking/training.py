"""Training a ranker in steps that can be stopped and resumed exactly."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from features.encoding import FIRST_KNOWN
from pool.engines.generators import seeded
from pool.engines.split_adam import PIECE_ELEMENTS, SplitAdam
from ranking.examples import Example, RankExamples
from ranking.groups import GroupedRows
from ranking.inputs import Fields
from ranking.losses import sampled_softmax, value_losses
from ranking.micro_step import MicroStep
from ranking.recipes import Recipe, Schedule
from ranking.scoring import Model

LOWEST_RATE = 0.02
"""The cosine schedule ends at this share of the learning rate."""


WARM_SHARE = 0.1
"""Of a run's moves, within which the learning rate has risen: a run on few rows is over after as many as a schedule's
warm-up."""


class RankTrainer:
    """Steps over grouped rows; with a teacher, also towards the teacher's logits.

    All randomness of a step follows from the seed and the step's number, so weights, optimiser, gathered
    gradients and the counts of steps and pieces are the whole state.

    Args:
        model: trained in place; `averaged` gives the weights to keep.
        users, items: fields of every user and item by index, [users + 2] and [items + 2] rows.
        rows: training rows.
        teacher: a trained ranker with the same objectives.
        piece_elements: weights that one unit of a move covers; it changes no result.
        recompute: keep less of the forward pass and compute it again on the way back.
        parts: cut each micro-step into units of its own (`ranking.micro_step`). They recompute in any case, and
            gather the gradients of shared weights in another order.
    """

    def __init__(
        self,
        model: Model,
        users: Fields,
        items: Fields,
        rows: GroupedRows,
        recipe: Recipe,
        schedule: Schedule,
        teacher: Model | None = None,
        piece_elements: int = PIECE_ELEMENTS,
        recompute: bool = False,
        parts: bool = False,
    ):
        self.model, self.rows, self.recompute = model, rows, recompute
        self.recipe, self.schedule, self.teacher = recipe, schedule, teacher
        self.names = model.config.objectives
        self.examples = RankExamples(users, items, rows, schedule, "engage" in self.names or teacher is not None)
        self._catalogue = len(items.cat) - FIRST_KNOWN
        self._values = torch.from_numpy(rows.rows.values.astype(np.float32))
        self.rating_mean, self.rating_std = value_stats(rows.rows.values)
        self._optimizer = _optimizer(model, schedule, piece_elements)
        self._average = {name: p.detach().clone() for name, p in model.named_parameters()}
        self._names = {id(p): name for name, p in model.named_parameters()}
        self.step_count, self.recent_loss = 0, float("nan")
        self._piece: int | None = None
        teach = None if teacher is None else self._wanted
        self._micro = MicroStep(model, self.examples, self._share, teach, schedule.seed) if parts else None
        self.steps_per_epoch = self.examples.steps_per_epoch
        self.total_steps = self.steps_per_epoch * schedule.epochs
        self._warm_moves = min(schedule.warmup_steps, int(WARM_SHARE * self.total_steps / schedule.micro))

    @property
    def moving(self) -> bool:
        """Whether a move of the weights has begun and not ended."""
        return self._piece is not None

    @property
    def total_units(self) -> int:
        moves = self.total_steps // self.schedule.micro
        return self.total_steps * self._parts + moves * self._optimizer.pieces

    @property
    def unit_count(self) -> int:
        """Units done of `total_units`."""
        moves = self.step_count // self.schedule.micro - self.moving
        place = 0 if self._micro is None else self._micro.place
        return self.step_count * self._parts + place + moves * self._optimizer.pieces + (self._piece or 0)

    @property
    def kind(self) -> str:
        """Of the next unit."""
        if self.moving:
            return "move"
        return "step" if self._micro is None else self._micro.kind

    def step(self) -> float:
        """One micro-step; the weights move every ``micro`` of them. Returns its loss."""
        before = self.step_count
        while self.step_count == before or self.moving:
            self.unit()
        return self.recent_loss

    def unit(self) -> None:
        """The smallest part of a step: a micro-step's gradients or a part of them, or a piece of a move."""
        if self._piece is not None:
            self._move(self._piece)
            return
        if not self.model.training:  # it walks through all modules
            self.model.train()
        loss = self._gather() if self._micro is None else self._micro.unit(self.step_count)
        if loss is None:
            return
        self.step_count += 1
        if self.step_count % self.schedule.micro == 0:
            self._piece = 0
        self.recent_loss = loss * self.schedule.micro

    def _gather(self) -> float:
        """Add a micro-step's gradients to those that the next move will apply; returns its share of the loss."""
        with seeded((self.schedule.seed << 32) + self.step_count):
            example = self.examples.draw(self.step_count)
            logits = self._logits(example)
        loss = self._share(example, logits, None if self.teacher is None else self._wanted(example))
        loss.backward()
        return float(loss.detach())

    def _logits(self, shown: Example) -> Tensor:
        """[G, C, O]."""
        forward = _recomputed if self.recompute else type(self.model).__call__
        return forward(self.model, shown.user, shown.history, shown.signal, shown.item, shown.views.mask)

    @torch.no_grad()
    def _wanted(self, shown: Example) -> Tensor:
        """The teacher's logits [G, C, O]."""
        assert self.teacher is not None
        if self.teacher.training:  # it walks through all modules
            self.teacher.eval()
        user, item = self.examples.undropped(shown)
        return self.teacher(user, shown.history, shown.signal, item, shown.views.mask)

    def _share(self, example: Example, logits: Tensor, wanted: Tensor | None) -> Tensor:
        return self.loss(example, logits, wanted) / self.schedule.micro

    def loss(self, shown: Example, logits: Tensor, wanted: Tensor | None = None) -> Tensor:
        """Training loss of an example; scalar.

        Args:
            logits: [G, C, O] of its candidates; wanted: those of the teacher.
        """
        rows, real, names = shown.rows, shown.real, self.names
        values, recipe, w = self._values[shown.places][real], self.recipe, self.recipe.weights
        own = logits[:, :rows]
        total = value_losses(own[real], values, names, recipe.like_at, w, self.rating_mean, self.rating_std)
        if "engage" in names:
            k, drawn = names.index("engage"), shown.candidates[:, rows:]
            same = shown.candidates[:, :rows].unsqueeze(2) == drawn.unsqueeze(1)
            odds = self.examples.odds[drawn]
            each = sampled_softmax(own[..., k], logits[:, rows:, k], same, odds, self._catalogue)
            total = total + w.engage * each[real].mean()
        if wanted is not None:
            counted = functional.pad(real, (0, logits.shape[1] - rows), value=True)
            total = total + self.schedule.distil_weight * functional.mse_loss(logits[counted], wanted[counted])
        return total

    def averaged(self) -> dict[str, Tensor]:
        """The moving average of the weights, as a state dict."""
        return {name: t.clone() for name, t in self._average.items()}

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs; loads with ``torch.load(weights_only=True)``."""
        grads = {name: p.grad for name, p in self.model.named_parameters() if p.grad is not None}
        return {
            "model": self.model.state_dict(),
            "optimizer": self._optimizer.state_dict(),
            "grads": grads,
            "average": self._average,
            "step_count": self.step_count,
            "piece": self._piece,
            "micro": None if self._micro is None else self._micro.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._average = {name: t.clone() for name, t in state["average"].items()}
        for name, p in self.model.named_parameters():
            p.grad = state["grads"][name].clone() if name in state["grads"] else None
        self.step_count, self._piece = state["step_count"], state["piece"]
        if self._micro is not None:
            self._micro.load_state_dict(state["micro"], self.step_count)

    @property
    def _parts(self) -> int:
        """Units of a micro-step."""
        return 1 if self._micro is None else self._micro.parts

    def _move(self, piece: int) -> None:
        """Apply a piece of the gathered gradients, and let the average follow."""
        done = min(1.0, self.step_count / self.total_steps)
        moves = self.step_count // self.schedule.micro
        warm = min(1.0, moves / max(1, self._warm_moves))
        rate = self.schedule.learning_rate * warm * max(LOWEST_RATE, 0.5 * (1 + math.cos(math.pi * done)))
        self._optimizer.move(piece, rate)
        # Early on the average must forget the start faster than its final decay would.
        decay = min(self.schedule.average, moves / (moves + 10))
        for span in self._optimizer.spans(piece):
            self._average[self._names[id(span.parameter)]][span.rows].lerp_(span.view, 1 - decay)
        self._piece = piece + 1
        if self._piece == self._optimizer.pieces:
            self._optimizer.zero_grad()
            self._piece = None


def value_stats(values: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of the values [n] that are there; (0, 1) when none is."""
    known = values[np.isfinite(values)].astype(np.float64)
    return (float(known.mean()), float(known.std()) or 1.0) if len(known) else (0.0, 1.0)


def _optimizer(model: nn.Module, schedule: Schedule, elements: int) -> SplitAdam:
    """Adam with decay on the tables only."""
    tables = [m.weight for m in model.modules() if isinstance(m, nn.Embedding)]
    known = {id(p) for p in tables}
    rest = [p for p in model.parameters() if id(p) not in known]
    groups = [(tables, schedule.embedding_decay), (rest, 0.0)]
    return SplitAdam(groups, schedule.learning_rate, elements, foreach=True)


def _recomputed(model: Model, user: Fields, history: Tensor, signal: Tensor, item: Fields, mask: Tensor) -> Tensor:
    """The model's forward, of which only what passes between its three parts is kept for the way back.

    Source: Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
    """
    encoded = checkpoint(model.encode_user, user, history, signal, mask, use_reentrant=False)
    state = checkpoint(model.encode_item, item, use_reentrant=False)
    logits = checkpoint(model.cross, encoded, state, use_reentrant=False)
    assert isinstance(logits, Tensor)
    return logits
