"""Training a ranker in steps that can be stopped and resumed exactly."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from pool.engines.split_adam import PIECE_ELEMENTS, SplitAdam
from ranking.groups import GroupBatch, GroupedRows
from ranking.inputs import Fields, RowUsers
from ranking.layers import drop_ids
from ranking.losses import sampled_softmax, value_losses
from ranking.recipes import Recipe, Schedule
from ranking.scoring import Model

LOWEST_RATE = 0.02
"""The cosine schedule ends at this share of the learning rate."""


class Views(NamedTuple):
    """How each of a group's C candidates sees the user: ``rows`` [G, C] int64, the training row whose
    context it has, and ``mask`` [G, C, H] float32, the events it may use."""

    rows: Tensor
    mask: Tensor


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
        recompute: keep less of the forward pass and compute it again on the way back: the gradients are
            the same to rounding, as shared weights gather their parts in another order.
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
    ):
        self.model, self.items, self.rows, self.recompute = model, items, rows, recompute
        self.users = RowUsers(users, rows.rows.context)
        self.recipe, self.schedule, self.teacher = recipe, schedule, teacher
        self.names = model.config.objectives
        self._values = torch.from_numpy(rows.rows.values.astype(np.float32))
        self._targets = torch.from_numpy(rows.rows.items.astype(np.int64))
        self.rating_mean, self.rating_std = value_stats(rows.rows.values)
        self._odds = _sampling_odds(rows.rows.items, len(items.cat))
        self._optimizer = _optimizer(model, schedule, piece_elements)
        self._average = {name: p.detach().clone() for name, p in model.named_parameters()}
        self._names = {id(p): name for name, p in model.named_parameters()}
        self.step_count, self.recent_loss = 0, float("nan")
        self._piece: int | None = None
        self._epoch, self._order = -1, np.zeros((0, rows.size), np.int64)
        self._per_step = max(1, schedule.groups // schedule.micro)
        # Groups shift from epoch to epoch, so their number does too; the first epoch's sets the length of all.
        self.steps_per_epoch = max(1, len(rows.groups(self._rng(0))) // self._per_step)
        self.total_steps = self.steps_per_epoch * schedule.epochs

    @property
    def moving(self) -> bool:
        """Whether a move of the weights has begun and not ended."""
        return self._piece is not None

    @property
    def total_units(self) -> int:
        return self.total_steps + self.total_steps // self.schedule.micro * self._optimizer.pieces

    @property
    def unit_count(self) -> int:
        """Units done of `total_units`."""
        moves = self.step_count // self.schedule.micro - self.moving
        return self.step_count + moves * self._optimizer.pieces + (self._piece or 0)

    def step(self) -> float:
        """One micro-step; the weights move every ``micro`` of them. Returns its loss."""
        self.unit()
        while self.moving:
            self.unit()
        return self.recent_loss

    def unit(self) -> None:
        """The smallest part of a step: a micro-step's gradients, or a piece of a move of the weights."""
        if self._piece is None:
            self._gather()
        else:
            self._move(self._piece)

    def _gather(self) -> None:
        """Add a micro-step's gradients to those that the next move will apply."""
        batch = self._next_batch()
        if not self.model.training:  # it walks through all modules
            self.model.train()
        with torch.random.fork_rng(devices=[]):
            # Not `torch.manual_seed`: without a GPU it keeps a note, with a stack trace, for each of its kinds.
            torch.default_generator.manual_seed((self.schedule.seed << 32) + self.step_count)
            loss = self.loss(batch)
        (loss / self.schedule.micro).backward()
        self.step_count += 1
        if self.step_count % self.schedule.micro == 0:
            self._piece = 0
        self.recent_loss = float(loss.detach())

    def loss(self, batch: GroupBatch) -> Tensor:
        """Training loss of a batch; scalar."""
        places = torch.from_numpy(batch.rows)
        real, places = places >= 0, places.clamp(min=0)
        targets, drawn = self._targets[places], self._draw(len(places))
        candidates = torch.cat([targets, drawn], 1)
        views = _widen(Views(places, torch.from_numpy(batch.mask)), real, drawn.shape[1])
        logits = self._logits(self.model, batch, candidates, views, training=True)
        size = targets.shape[1]
        w = self.recipe.weights
        total = value_losses(
            logits[:, :size][real],
            self._values[places][real],
            self.names,
            self.recipe.like_at,
            w,
            self.rating_mean,
            self.rating_std,
        )
        if "engage" in self.names:
            k = self.names.index("engage")
            same = targets.unsqueeze(2) == drawn.unsqueeze(1)
            odds = self._odds[drawn]
            each = sampled_softmax(logits[:, :size, k], logits[:, size:, k], same, odds, len(self.items.cat) - 2)
            total = total + w.engage * each[real].mean()
        if self.teacher is not None:
            total = total + self.schedule.distil_weight * self._distance(logits, batch, candidates, views, real)
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
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self._optimizer.load_state_dict(state["optimizer"])
        self._average = {name: t.clone() for name, t in state["average"].items()}
        for name, p in self.model.named_parameters():
            p.grad = state["grads"][name].clone() if name in state["grads"] else None
        self.step_count, self._piece = state["step_count"], state["piece"]

    def _next_batch(self) -> GroupBatch:
        epoch, at = divmod(self.step_count, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self.rows.groups(self._rng(epoch))
        return self.rows.batch(self._order[at * self._per_step : (at + 1) * self._per_step])

    def _draw(self, groups: int) -> Tensor:
        """[G, N] int64 items drawn by `_sampling_odds`; N is 0 when nothing needs them."""
        count = self.schedule.negatives if "engage" in self.names or self.teacher is not None else 0
        if not count:
            return torch.zeros(groups, 0, dtype=torch.int64)
        return torch.multinomial(self._odds, groups * count, True).view(groups, count)

    def _distance(self, logits: Tensor, batch: GroupBatch, candidates: Tensor, views: Views, real: Tensor) -> Tensor:
        """Mean square distance to the teacher's logits over real rows and drawn items."""
        assert self.teacher is not None
        self.teacher.eval()
        with torch.no_grad():
            wanted = self._logits(self.teacher, batch, candidates, views, training=False)
        counted = functional.pad(real, (0, candidates.shape[1] - real.shape[1]), value=True)
        return functional.mse_loss(logits[counted], wanted[counted])

    def _logits(self, model: Model, batch: GroupBatch, candidates: Tensor, views: Views, training: bool) -> Tensor:
        """Logits [G, C, O]; in training some views lose their context, some users and items their id."""
        plan = self.schedule
        user = self.users.take(torch.from_numpy(batch.users), views.rows, plan.context_dropout if training else 0.0)
        item = self.items.take(candidates)
        if training and plan.id_dropout:
            user, item = (Fields(drop_ids(side.cat, plan.id_dropout), side.num, side.multi) for side in (user, item))
        history, signal = torch.from_numpy(batch.history), torch.from_numpy(batch.signal)
        if training and self.recompute:
            return _recomputed(model, user, history, signal, item, views.mask)
        return model(user, history, signal, item, views.mask)

    def _move(self, piece: int) -> None:
        """Apply a piece of the gathered gradients, and let the average follow."""
        done = min(1.0, self.step_count / self.total_steps)
        moves = self.step_count // self.schedule.micro
        warm = min(1.0, moves / max(1, self.schedule.warmup_steps))
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

    def _rng(self, epoch: int) -> np.random.Generator:
        return np.random.default_rng([self.schedule.seed, epoch])


def value_stats(values: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation of the values [n] that are there; (0, 1) when none is."""
    known = values[np.isfinite(values)].astype(np.float64)
    return (float(known.mean()), float(known.std()) or 1.0) if len(known) else (0.0, 1.0)


def _widen(views: Views, real: Tensor, extra: int) -> Views:
    """Views of C + extra candidates: drawn items take turns in looking through the eyes of the group's real rows.

    So they meet contexts as often as the group's rows do, and only the item tells them apart.
    """
    if not extra:
        return views
    turns = torch.arange(extra).unsqueeze(0) % real.sum(1, keepdim=True)
    first = real.float().argsort(dim=1, descending=True, stable=True)
    borrowed = first.gather(1, turns)
    seen = views.mask.gather(1, borrowed.unsqueeze(2).expand(-1, -1, views.mask.shape[2]))
    return Views(torch.cat([views.rows, views.rows.gather(1, borrowed)], 1), torch.cat([views.mask, seen], 1))


def _sampling_odds(items: np.ndarray, rows: int) -> Tensor:
    """[rows] float32, half uniform, half by popularity; padding and unknown are never drawn."""
    counts = np.bincount(items, minlength=rows).astype(np.float64)
    counts[:2] = 0
    odds = 0.5 * counts / max(counts.sum(), 1.0) + 0.5 / (rows - 2)
    odds[:2] = 0
    return torch.from_numpy((odds / odds.sum()).astype(np.float32))


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
