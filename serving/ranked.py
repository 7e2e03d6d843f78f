"""Candidates in order, through the stages that reorder them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

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

    def take(self, places: np.ndarray) -> RankedRow:
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
        best = self.take(np.arange(min(k, len(self.items))))
        return Slate(best.items, best.scores, best.sources, best.objectives, self.names, more, trace)


@dataclass(frozen=True)
class Ranked:
    """Candidates of B users, best first, padded with 0; columns as in `RankedRow` with an axis of users.

    ``evidence`` [B, C] is what recall holds for each candidate; it stays with it whatever the order.
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
        scored = np.zeros(self.items.shape, bool)
        scored[:, :head] = np.isfinite(found) & (self.items[:, :head] > 0)
        scores = np.array(self.scores)
        scores[:, :head] = np.where(scored[:, :head], found, scores[:, :head])
        order = np.argsort(np.where(scored, -scores, np.inf), axis=1, kind="stable")
        full = np.full((*self.items.shape, len(names)), np.nan, np.float32)
        full[:, :head] = objectives
        settled = np.where(scored.any(axis=1, keepdims=True), scored, self.settled)
        return Ranked(
            np.take_along_axis(self.items, order, 1),
            np.take_along_axis(scores, order, 1),
            np.take_along_axis(self.sources, order, 1),
            np.take_along_axis(settled, order, 1),
            None if self.evidence is None else np.take_along_axis(self.evidence, order, 1),
            np.take_along_axis(full, order[:, :, None], 1),
            names,
        )

    def row(self, position: int) -> RankedRow:
        """One user's candidates without the padding."""
        found = RankedRow(
            self.items[position],
            self.scores[position],
            self.sources[position],
            self.settled[position],
            None if self.objectives is None else self.objectives[position],
            self.names,
        )
        return found.take(np.flatnonzero(found.items))
