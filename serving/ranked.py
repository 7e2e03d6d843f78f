"""Candidates in order, through the stages that reorder them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from features.compiled import compiled
from features.ordering import falling
from ranking.objectives import Weighting, combine
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

    def slate(self, trace: Trace, more: bool = False) -> Slate:
        return Slate(self.items, self.scores, self.sources, self.objectives, self.names, more, trace)


@dataclass(frozen=True)
class Ranked:
    """Candidates of B users, best first, padded with 0.

    items [B, C] int32, scores [B, C] float32, sources [B, C] uint8. The first ``settled`` [B] int64 of a
    user were scored by the last stage that ranked any of them. ``evidence`` [B, C] float32, or [B, 0] when
    there is none, is what recall holds for each candidate; it stays with it whatever the order.
    ``objectives`` [B, F, O] float32, by ``names``, are of the first F candidates, which the last stage
    ranked; there are no names when none did.
    """

    items: np.ndarray
    scores: np.ndarray
    sources: np.ndarray
    settled: np.ndarray
    evidence: np.ndarray
    objectives: np.ndarray
    names: tuple[str, ...] = ()

    @classmethod
    def recalled(cls, found: Candidates) -> Ranked:
        """Recall's own order."""
        items, scores = np.ascontiguousarray(found.items, np.int32), np.ascontiguousarray(found.scores, np.float32)
        sources = np.ascontiguousarray(found.sources, np.uint8)
        assert items.shape == scores.shape == sources.shape
        settled = np.full(len(items), items.shape[1], np.int64)
        return cls(items, scores, sources, settled, scores, np.zeros((len(items), 0, 0), np.float32))

    @classmethod
    def given(cls, items: np.ndarray) -> Ranked:
        """The caller's own order of items [B, C]."""
        items = np.ascontiguousarray(items, np.int32)
        rows, scores = len(items), np.full(items.shape, np.nan, np.float32)
        nothing = np.zeros((rows, 0), np.float32), np.zeros((rows, 0, 0), np.float32)
        return cls(items, scores, np.zeros(items.shape, np.uint8), np.zeros(rows, np.int64), *nothing)

    def reordered(self, objectives: np.ndarray, weighting: Weighting) -> Ranked:
        """Sort by objectives [B, F, O] of the first F candidates and, where there is some, recall's evidence.

        Candidates that get no score (beyond F, padding, one that is not finite) keep their order and their
        scores behind the others. Equal scores keep their order.

        Args:
            weighting: of the objectives, with recall's evidence in front where there is some.
        """
        objectives = np.ascontiguousarray(objectives, np.float32)
        rows, head, width = objectives.shape
        # Compiled loops do not look where they write.
        assert rows == len(self.items) and head <= self.items.shape[1] and width <= len(weighting.names)
        both, found = combine(self.items, self.evidence, objectives, weighting.values)
        columns = self.items, self.scores, self.sources, self.settled, self.evidence
        return Ranked(*_moved(falling(found), found, *columns, both), names=weighting.names)

    def part(self, rows: slice) -> Ranked:
        """Some of the users."""
        columns = self.items, self.scores, self.sources, self.settled, self.evidence, self.objectives
        return Ranked(*(column[rows] for column in columns), names=self.names)

    def rows(self, usable: np.ndarray, most: Sequence[int]) -> list[RankedRow]:
        """Each user's candidates at the usable places, [B, n <= C] bool, but no more than ``most`` [B] of them."""
        columns = self.items, self.scores, self.sources, self.settled, self.objectives
        counts, *found = _picked(usable, np.array(most, np.int64), *columns)
        names = self.names
        return [
            RankedRow(items[:n], scores[:n], sources[:n], settled[:n], objectives[:n] if names else None, names)
            for n, items, scores, sources, settled, objectives in zip(counts.tolist(), *found, strict=True)
        ]


# What came from another process is read-only.
_ITEMS = "Array(int32, 2, 'C', True)"
_SCORES = "Array(float32, 2, 'C', True)"
_SOURCES = "Array(uint8, 2, 'C', True)"
_COUNTS = "Array(int64, 1, 'C', True)"
_OBJECTIVES = "Array(float32, 3, 'C', True)"


@compiled(
    "Tuple((int32[:, ::1], float32[:, ::1], uint8[:, ::1], int64[::1], float32[:, ::1], float32[:, :, ::1]))("
    f"Array(int64, 2, 'C', True), {_SCORES}, {_ITEMS}, {_SCORES}, {_SOURCES}, {_COUNTS}, {_SCORES}, {_OBJECTIVES})"
)
def _moved(order, found, items, scores, sources, settled, evidence, objectives):
    """The columns of `Ranked` with their first F places in the order [B, F] of the scores found, [B, F].

    Scores at -inf count as not found; the order has them last.
    """
    out = items.copy(), scores.copy(), sources.copy(), settled.copy(), evidence.copy(), np.empty_like(objectives)
    for row in range(len(order)):
        count = 0
        for place in range(order.shape[1]):
            old = order[row, place]
            is_scored = found[row, old] > -np.inf
            count += is_scored
            out[0][row, place] = items[row, old]
            out[1][row, place] = found[row, old] if is_scored else scores[row, old]
            out[2][row, place] = sources[row, old]
            if evidence.shape[1]:
                out[4][row, place] = evidence[row, old]
            for k in range(objectives.shape[2]):
                out[5][row, place, k] = objectives[row, old, k]
        if count:
            out[3][row] = count
    return out


@compiled(
    "Tuple((int64[::1], int32[:, ::1], float32[:, ::1], uint8[:, ::1], boolean[:, ::1], float32[:, :, ::1]))("
    f"boolean[:, ::1], {_COUNTS}, {_ITEMS}, {_SCORES}, {_SOURCES}, {_COUNTS}, {_OBJECTIVES})"
)
def _picked(usable, most, items, scores, sources, settled, objectives):
    """The first ``most`` usable places of each row's columns, and how many there are."""
    rows, depth = usable.shape
    shape = rows, min(depth, most.max())
    counts, out_items, out_scores = np.zeros(rows, np.int64), np.empty(shape, np.int32), np.empty(shape, np.float32)
    out_sources, out_settled = np.empty(shape, np.uint8), np.empty(shape, np.bool_)
    out_objectives = np.full((*shape, objectives.shape[2]), np.float32(np.nan))
    for row in range(rows):
        n = 0
        for place in range(depth):
            if n == most[row]:
                break
            if usable[row, place]:
                out_items[row, n], out_scores[row, n] = items[row, place], scores[row, place]
                out_sources[row, n], out_settled[row, n] = sources[row, place], place < settled[row]
                if place < objectives.shape[1]:
                    out_objectives[row, n] = objectives[row, place]
                n += 1
        counts[row] = n
    return counts, out_items, out_scores, out_sources, out_settled, out_objectives
