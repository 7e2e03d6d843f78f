"""Logits of many rows, each with the history it may see."""

from __future__ import annotations

import numpy as np
import torch

from ranking.coarse import CoarseRanker
from ranking.fine import FineRanker
from ranking.groups import GroupedRows
from ranking.inputs import Fields, RowUsers

Model = FineRanker | CoarseRanker


class Scoring:
    """Logits of every row, some groups a unit.

    Args:
        groups: of a unit. Rows do not depend on their batch-mates, except for the last bits of their logits.
    """

    def __init__(self, model: Model, users: Fields, items: Fields, rows: GroupedRows, groups: int = 256):
        self.model, self._items, self._rows, self._size = model, items, rows, groups
        self._users = RowUsers(users, rows.rows.context)
        self._packed = rows.groups(None)
        self.out = np.zeros((len(rows.rows), len(model.config.objectives)), np.float32)
        self.total = -(-len(self._packed) // groups)

    @torch.no_grad()
    def unit(self, place: int) -> None:
        """Score the groups of one unit, of ``total``, into ``out`` [n, O] float32."""
        if self.model.training:  # it walks through all modules
            self.model.eval()
        batch = self._rows.batch(self._packed[place * self._size : (place + 1) * self._size])
        real, places = batch.rows >= 0, np.maximum(batch.rows, 0)
        item = self._items.take(torch.from_numpy(self._rows.rows.items[places].astype(np.int64)))
        user = self._users.take(torch.from_numpy(batch.users), torch.from_numpy(places))
        history, signal, mask = (torch.from_numpy(a) for a in (batch.history, batch.signal, batch.mask))
        self.out[batch.rows[real]] = self.model(user, history, signal, item, mask).numpy()[real]


def score_rows(model: Model, users: Fields, items: Fields, rows: GroupedRows, groups: int = 256) -> np.ndarray:
    """Logits of every row [n, O] float32."""
    scoring = Scoring(model, users, items, rows, groups)
    for place in range(scoring.total):
        scoring.unit(place)
    return scoring.out
