"""Candidates in order, through the stages that reorder them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from features.ordering import falling
from ranking.objectives import RECALL, combine
from serving.types import Candidates, Slate, Trace


@dataclass(frozen=True)
class RankedRow:
    """Candidates of one user, best first.

    items [n] int32, scores [n], sources [n], settled [n] bool (scored by the last stage that ranked this
    user's candidates), objectives [n, O] by ``names``, or None.
    """

    items: np.ndarray
    scores: np.ndarray
    sources: np.ndarray
    settled: np.ndarray
    objectives: np.ndarray | None
    names: tuple[str, ...]

    def take(self, places: np.ndarray | slice) -> RankedRow:
        return RankedRow(
            self.items[places],
            self.scores[places],
            self.sources[places],
            self.settled[places],
            None if self.objectives is None else self.objectives[places],
            self.names,
        )

    def followed_by(self, items: np.ndarray) -> RankedRow:
        """With items [m] that no source gave and nothing scored behind the others."""
        m, objectives = len(items), self.objectives
        if objectives is not None:
            objectives = np.concatenate([objectives, np.full((m, objectives.shape[1]), np.nan, np.float32)])
        return RankedRow(
            np.concatenate([self.items, items]),
            np.concatenate([self.scores, np.full(m, np.nan, np.float32)]),
            np.concatenate([self.sources, np.zeros(m, np.uint8)]),
            np.concatenate([self.settled, np.zeros(m, bool)]),
            objectives,
            self.names,
        )

    def slate(self, k: int, trace: Trace, more: bool = False) -> Slate:
        best = self.take(slice(k))
        return Slate(best.items, best.scores, best.sources, best.objectives, self.names, more, trace)


@dataclass(frozen=True)
class Ranked:
    """Candidates of B users, best first, padded with 0; columns as in `RankedRow` with an axis of users.

    ``evidence`` [B, C] is what recall holds for each candidate; it stays with it whatever the order.
    ``objectives`` [B, F, O] are of the first F candidates, which the last stage ranked.
    """

    items: np.ndarray
    scores: np.ndarray
    sources: np.ndarray
    settled: np.ndarray
    evidence: np.ndarray | None = None
    objectives: np.ndarray | None = None
    names: tuple[str, ...] = ()

    @classmethod
    def recalled(cls, found: Candidates) -> Ranked:
        """Recall's own order."""
        return cls(found.items, found.scores, found.sources, np.ones(found.items.shape, bool), found.scores)

    @classmethod
    def given(cls, items: np.ndarray) -> Ranked:
        """The caller's own order of items [B, C]."""
        scores = np.full(items.shape, np.nan, np.float32)
        return cls(items, scores, np.zeros(items.shape, np.uint8), np.zeros(items.shape, bool))

    def reordered(self, objectives: np.ndarray, names: tuple[str, ...], weights: Mapping[str, float]) -> Ranked:
        """Sort by a ranker's objectives for the first F candidates, [B, F, O], and recall's evidence if there is some.

        Candidates it did not score (beyond F, padding, a score that is not finite) keep their order and
        their scores behind the others. Equal scores keep their order.
        """
        head = objectives.shape[1]
        if self.evidence is not None:
            objectives = np.concatenate([self.evidence[:, :head, None], objectives], axis=2)
            names = (RECALL, *names)
        found = combine(objectives, names, weights)
        scored = np.isfinite(found) & (self.items[:, :head] > 0)
        order = falling(np.where(scored, found, -np.inf))
        rows = np.arange(len(order))[:, None]

        def sorted_head(column: np.ndarray, values: np.ndarray | None = None) -> np.ndarray:
            """The column with its first F places in the new order; the others stay where they are."""
            out = column.copy()
            out[:, :head] = (column[:, :head] if values is None else values)[rows, order]
            return out

        ranked = scored.any(axis=1, keepdims=True)
        settled = self.settled & ~ranked
        return Ranked(
            sorted_head(self.items),
            sorted_head(self.scores, np.where(scored, found, self.scores[:, :head])),
            sorted_head(self.sources),
            sorted_head(settled, np.where(ranked, scored, self.settled[:, :head])),
            None if self.evidence is None else sorted_head(self.evidence),
            objectives[rows, order],
            names,
        )

    def row(self, position: int, places: np.ndarray | None = None) -> RankedRow:
        """One user's candidates at the given places, or all without the padding."""
        places = np.flatnonzero(self.items[position]) if places is None else places
        return RankedRow(
            self.items[position][places],
            self.scores[position][places],
            self.sources[position][places],
            self.settled[position][places],
            self._objectives_at(position, places),
            self.names,
        )

    def _objectives_at(self, position: int, places: np.ndarray) -> np.ndarray | None:
        if self.objectives is None:
            return None
        objectives = self.objectives[position]
        if places.max(initial=-1) < len(objectives):
            return objectives[places]
        out = np.full((len(places), objectives.shape[1]), np.nan, np.float32)
        ranked = places < len(objectives)
        out[ranked] = objectives[places[ranked]]
        return out
