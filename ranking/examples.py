"""What a ranker's micro-steps train on: groups of rows, items drawn against them, and the fields of both."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ranking.groups import GroupBatch, GroupedRows
from ranking.inputs import Fields, RowUsers
from ranking.layers import drop_ids
from ranking.recipes import Schedule


class Views(NamedTuple):
    """How each of a group's C candidates sees the user: ``rows`` [G, C] int64, the training row whose
    context it has, and ``mask`` [G, C, H] float32, the events it may use."""

    rows: Tensor
    mask: Tensor


@dataclass(frozen=True)
class Example:
    """A micro-step's G groups, of R rows each that may be missing, with N items drawn for each.

    ``places`` [G, R] int64 are positions of rows, of which those that are ``real`` [G, R] bool count;
    ``candidates`` [G, R + N] int64 their items and then the drawn ones; ``user`` and ``item`` their fields.
    """

    users: Tensor
    places: Tensor
    real: Tensor
    candidates: Tensor
    views: Views
    history: Tensor
    signal: Tensor
    user: Fields
    item: Fields

    @property
    def rows(self) -> int:
        """R, the candidates that are rows."""
        return self.places.shape[1]


class RankExamples:
    """Examples by the number of a micro-step; what is drawn for them comes from torch's generator.

    Args:
        users, items: fields of every user and item by index, [users + 2] and [items + 2] rows.
        draws: whether the loss needs drawn items.
    """

    def __init__(self, users: Fields, items: Fields, rows: GroupedRows, schedule: Schedule, draws: bool):
        self._users, self._items, self._rows, self._schedule = RowUsers(users, rows.rows.context), items, rows, schedule
        self._targets = torch.from_numpy(rows.rows.items.astype(np.int64))
        self._count = schedule.negatives if draws else 0
        self.odds = _sampling_odds(rows.rows.items, len(items.cat))
        self._epoch, self._order = -1, np.zeros((0, rows.size), np.int64)
        self._per_step = max(1, schedule.groups // schedule.micro)
        # Groups shift from epoch to epoch, so their number does too; the first epoch's sets the length of all, and one
        # that has fewer begins again.
        self.steps_per_epoch = max(1, len(rows.groups(self._rng(0))) // self._per_step)

    def draw(self, step: int) -> Example:
        """Some of its views lose their context, some users and items their id."""
        batch = self._batch(step)
        places = torch.from_numpy(batch.rows)
        real, places = places >= 0, places.clamp(min=0)
        drawn = self._draw(len(places))
        candidates = torch.cat([self._targets[places], drawn], 1)
        views = _widen(Views(places, torch.from_numpy(batch.mask)), real, drawn.shape[1])
        plan, users = self._schedule, torch.from_numpy(batch.users)
        user = self._users.take(users, views.rows, plan.context_dropout)
        item = self._items.take(candidates)
        if plan.id_dropout:
            user, item = (Fields(drop_ids(side.cat, plan.id_dropout), side.num, side.multi) for side in (user, item))
        history, signal = torch.from_numpy(batch.history), torch.from_numpy(batch.signal)
        return Example(users, places, real, candidates, views, history, signal, user, item)

    def undropped(self, example: Example) -> tuple[Fields, Fields]:
        """Fields of users and items with every context and id, as a teacher sees them."""
        return self._users.take(example.users, example.views.rows), self._items.take(example.candidates)

    def _batch(self, step: int) -> GroupBatch:
        epoch, at = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, self._rows.groups(self._rng(epoch))
        wanted = np.arange(at * self._per_step, (at + 1) * self._per_step)
        return self._rows.batch(self._order.take(wanted, axis=0, mode="wrap"))

    def _draw(self, groups: int) -> Tensor:
        """[G, N] int64 items drawn by `_sampling_odds`; N is 0 when nothing needs them."""
        if not self._count:
            return torch.zeros(groups, 0, dtype=torch.int64)
        return torch.multinomial(self.odds, groups * self._count, True).view(groups, self._count)

    def _rng(self, epoch: int) -> np.random.Generator:
        return np.random.default_rng([self._schedule.seed, epoch])


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
