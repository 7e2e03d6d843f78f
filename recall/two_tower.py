"""Two-tower retrieval: a user vector from profile and history, an item vector from id and features.

The score of an item is the inner product. The user's own id is not read: trials on
MovieLens-1M showed no clear gain from it, and without it new users and new events count at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from features.encoding import UNKNOWN, Encoder

Inputs = dict[str, Tensor]
"""Batch arrays by their names in `UserBatch.inputs` and `ItemBatch.inputs`."""


@dataclass(frozen=True)
class TowerShape:
    """Sizes of the embedding tables and counts of numeric columns, from an encoder.

    Only profile columns enter the user tower; context columns follow them and are not read.
    """

    items: int
    user_cat: tuple[int, ...] = ()
    user_num: int = 0
    user_multi: tuple[int, ...] = ()
    item_cat: tuple[int, ...] = ()
    item_num: int = 0
    item_multi: tuple[int, ...] = ()

    @classmethod
    def of(cls, encoder: Encoder) -> TowerShape:
        schema = encoder.schema
        return cls(
            encoder.item_rows,
            tuple(encoder.cat_sizes("user")[1:]),
            len(schema.of("user", kind="numeric")),
            tuple(encoder.multi_sizes("user")),
            tuple(encoder.cat_sizes("item")[1:]),
            len(schema.of("item", kind="numeric")),
            tuple(encoder.multi_sizes("item")),
        )


class FieldSum(nn.Module):
    """Sum of the embeddings of declared fields: cat [B, F], num [B, Fn], multi [B, Fm, L] to [B, D]."""

    def __init__(self, cat: Sequence[int], num: int, multi: Sequence[int], dim: int):
        super().__init__()
        self.cat = nn.ModuleList(_table(rows, dim) for rows in cat)
        self.multi = nn.ModuleList(_table(rows, dim) for rows in multi)
        self.num = nn.Linear(num, dim, bias=False) if num else None
        if self.num is not None:
            nn.init.zeros_(self.num.weight)

    def forward(self, total: Tensor, cat: Tensor | None, num: Tensor | None, multi: Tensor | None) -> Tensor:
        """Adds the fields to total [B, D]; cat starts with the id, which is skipped."""
        for column, table in enumerate(self.cat, 1):
            assert cat is not None
            total = total + table(cat[:, column].long())
        for column, table in enumerate(self.multi):
            assert multi is not None
            values = multi[:, column].long()
            present = (values > 0).unsqueeze(2).to(total.dtype)
            total = total + (table(values) * present).sum(1) / present.sum(1).clamp(min=1.0)
        if self.num is not None:
            assert num is not None
            total = total + self.num(num[:, : self.num.in_features])
        return total


class UserTower(nn.Module):
    """Profile and history to a user vector.

    The history is a sum of input embeddings, one learnt gain for each signal, divided by the square
    root of its length: the sum keeps evidence adding up, the root keeps long histories in range.
    """

    def __init__(self, shape: TowerShape, dim: int, hidden: int, dropout: float):
        super().__init__()
        width = dim - 1
        self.history = nn.Embedding(shape.items, width)
        nn.init.normal_(self.history.weight, std=0.02)
        self.gain = nn.Parameter(torch.tensor([0.0, 1.0, 1.0]))
        self.profile = FieldSum(shape.user_cat, shape.user_num, shape.user_multi, width)
        self.start = nn.Parameter(torch.zeros(width))
        self.dropout = nn.Dropout(dropout)
        self.widen = nn.Linear(width, hidden)
        self.narrow = nn.Linear(hidden, width)
        nn.init.zeros_(self.narrow.weight)
        nn.init.zeros_(self.narrow.bias)

    def forward(self, inputs: Inputs) -> Tensor:
        """User vectors [B, D] float32; the last entry is 1 and meets the item's bias."""
        history, signal = inputs["history"].long(), inputs["signal"].long()
        pooled = self._pool_events(history, signal) if self.training else self._pool(history, signal)
        known = (history > 0).sum(1, keepdim=True).clamp(min=1).to(pooled.dtype)
        total = self.start + pooled / known.sqrt()
        total = self.profile(total, inputs.get("user_cat"), inputs.get("user_num"), inputs.get("user_multi"))
        total = self.dropout(total)
        total = total + self.narrow(self.dropout(functional.gelu(self.widen(total))))
        return torch.cat([total, torch.ones_like(total[:, :1])], 1)

    def _pool(self, history: Tensor, signal: Tensor) -> Tensor:
        """Weighted sum of embeddings, [B, H] to [B, D - 1]."""
        return torch.einsum("bh,bhd->bd", self.gain[signal] * (signal > 0), self.history(history))

    def _pool_events(self, history: Tensor, signal: Tensor) -> Tensor:
        """The same over present events only: in training most of [B, H] is padding."""
        rows, places = torch.nonzero((history > 0) & (signal > 0), as_tuple=True)
        events = self.history(history[rows, places]) * self.gain[signal[rows, places]].unsqueeze(1)
        return torch.zeros(len(history), events.shape[1]).index_add(0, rows, events)


class ItemTower(nn.Module):
    """Item id and features to an item vector whose last entry is a bias."""

    def __init__(self, shape: TowerShape, dim: int):
        super().__init__()
        self.id = nn.Embedding(shape.items, dim)
        nn.init.normal_(self.id.weight, std=0.02)
        self.features = FieldSum(shape.item_cat, shape.item_num, shape.item_multi, dim)

    def forward(self, inputs: Inputs) -> Tensor:
        """Item vectors [N, D] float32."""
        cat = inputs["item_cat"]
        return self.features(self.id(cat[:, 0].long()), cat, inputs.get("item_num"), inputs.get("item_multi"))


class TwoTower(nn.Module):
    """Both towers."""

    def __init__(self, shape: TowerShape, dim: int, hidden: int, dropout: float):
        super().__init__()
        self.shape = shape
        self.user = UserTower(shape, dim, hidden, dropout)
        self.item = ItemTower(shape, dim)

    def start_from(self, vectors: Tensor, popularity: Tensor) -> None:
        """Begin at spectral item vectors [items, K <= D - 1] and log popularity [items] instead of noise."""
        width = vectors.shape[1]
        share = popularity.clamp(min=1.0)[:, None]
        centred = torch.log1p(popularity)
        with torch.no_grad():
            self.user.history.weight[:, :width] = vectors * 2.0 * share**-0.25
            self.item.id.weight[:, :width] = vectors * share**0.25
            self.item.id.weight[:, -1] = centred - centred.mean()
            self.item.id.weight[: UNKNOWN + 1, :-1] = 0.0


def _table(rows: int, dim: int) -> nn.Embedding:
    table = nn.Embedding(rows, dim)
    nn.init.normal_(table.weight, std=0.01)
    return table
