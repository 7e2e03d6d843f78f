"""What a ranker reads: table sizes of its inputs, and batches of arrays as tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

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
    """Field tensors of B users or items: cat [B, F] int64, num [B, Fn] float32, multi [B, Fm, L] int64."""

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
