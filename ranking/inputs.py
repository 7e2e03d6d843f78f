"""What a ranker reads: table sizes of its inputs, and batches of arrays as tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from features.batches import ContextBatch
from features.encoding import Encoder, ItemBatch, UserBatch


def lists_to_tuples(raw: dict[str, Any]) -> dict[str, Any]:
    """What JSON made of a dataclass's fields, as the dataclass holds them."""
    return {name: tuple(value) if isinstance(value, list) else value for name, value in raw.items()}


@dataclass(frozen=True)
class InputSpec:
    """Embedding rows of each categorical and multi-valued column, and counts of numeric ones.

    ``history`` is the number of recent events a user carries; item indices in it are rows of the
    item id vocabulary, so ``item_cat[0]`` is also the size of the history table.
    """

    user_cat: tuple[int, ...]
    item_cat: tuple[int, ...]
    history: int
    user_num: int = 0
    item_num: int = 0
    user_multi: tuple[int, ...] = ()
    item_multi: tuple[int, ...] = ()

    @classmethod
    def from_encoder(cls, encoder: Encoder) -> InputSpec:
        schema = encoder.schema
        return cls(
            user_cat=tuple(encoder.cat_sizes("user", "context")),
            item_cat=tuple(encoder.cat_sizes("item")),
            history=schema.history.length,
            user_num=len(schema.of("user", "context", kind="numeric")),
            item_num=len(schema.of("item", kind="numeric")),
            user_multi=tuple(encoder.multi_sizes("user")),
            item_multi=tuple(encoder.multi_sizes("item")),
        )

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> InputSpec:
        """Inverse of `dataclasses.asdict` after a passage through JSON."""
        return cls(**lists_to_tuples(raw))


@dataclass(frozen=True)
class Fields:
    """Field tensors of B users or items: cat [B, F] int64, num [B, Fn] float32, multi [B, Fm, L] int64.

    Candidates, and users with a context for each of theirs, have [B, C] in place of [B].
    """

    cat: Tensor
    num: Tensor
    multi: Tensor

    @classmethod
    def of(cls, batch: UserBatch | ItemBatch) -> Fields:
        cat, num, multi = (np.ascontiguousarray(a) for a in (batch.cat, batch.num, batch.multi))
        return cls(torch.from_numpy(cat).long(), torch.from_numpy(num), torch.from_numpy(multi).long())

    def take(self, rows: Tensor) -> Fields:
        """The rows at the given positions; ``rows`` may have any shape."""
        return Fields(self.cat[rows], self.num[rows], self.multi[rows])

    def by_view(self) -> Fields:
        """A user's fields with an axis for views, [B, R, ...]; R is 1 where all views share them."""
        if self.cat.dim() == 3:
            return self
        return Fields(self.cat.unsqueeze(1), self.num.unsqueeze(1), self.multi.unsqueeze(1))


class RowUsers:
    """Users as training rows see them: the profile is the user's, the context the row's.

    Args:
        users: fields of every user by index, [users + 2] rows, their context columns imputed.
        context: of the rows, [n]; None leaves users as they are.
    """

    def __init__(self, users: Fields, context: ContextBatch | None):
        self._users = users
        self._context = None if context is None else _tensors(context)

    def take(self, users: Tensor, rows: Tensor, dropout: float = 0.0) -> Fields:
        """Fields of users [G], or with context those of every view of them, [G, R].

        Args:
            rows: [G, R] int64, the row whose context each view has.
            dropout: share of views left without context, as requests without one will be.
        """
        if self._context is None:
            return self._users.take(users)
        fields = self._users.take(users.unsqueeze(1).expand_as(rows))
        # Scoring must not draw: it would move the global generator.
        kept = torch.rand(rows.shape) >= dropout if dropout else torch.ones(rows.shape, dtype=torch.bool)
        cat, num = (column[rows] for column in self._context)
        return Fields(_end_with(fields.cat, cat, kept), _end_with(fields.num, num, kept), fields.multi)


def _tensors(context: ContextBatch) -> tuple[Tensor, Tensor]:
    cat, num = np.ascontiguousarray(context.cat), np.ascontiguousarray(context.num)
    return torch.from_numpy(cat).long(), torch.from_numpy(num)


def _end_with(columns: Tensor, last: Tensor, kept: Tensor) -> Tensor:
    """Columns [..., F] whose last K are those of ``last`` [..., K] where ``kept`` [...] is true."""
    profile, context = columns.split([columns.shape[-1] - last.shape[-1], last.shape[-1]], -1)
    return torch.cat([profile, torch.where(kept.unsqueeze(-1), last, context)], -1)
