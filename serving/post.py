"""Post-processing: from ranked candidates to the slate.

Eligibility, the caller's filter and exclusions are applied here over the whole slate, whatever path
an item came by; then caps and diversity choose, and the slate is filled from the ranked reserves
and at last from the popular items.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from configs.settings import RankingSettings
from ranking.objectives import RECALL, combine
from ranking.rerank import Caps, select
from serving.cursor import MAX_ITEMS
from serving.preparation import Row
from serving.release import Release
from serving.types import Candidates, Slate, Trace

STAGE = "post"


@dataclass(frozen=True)
class RankedRow:
    """Candidates of one user, best first: items [n] int32, scores [n], sources [n], objectives [n, O] by ``names``."""

    items: np.ndarray
    scores: np.ndarray
    sources: np.ndarray
    objectives: np.ndarray | None
    names: tuple[str, ...]

    def take(self, places: np.ndarray) -> RankedRow:
        objectives = None if self.objectives is None else self.objectives[places]
        return RankedRow(self.items[places], self.scores[places], self.sources[places], objectives, self.names)

    def slate(self, k: int, trace: Trace, more: bool = False) -> Slate:
        best = self.take(np.arange(min(k, len(self.items))))
        return Slate(best.items, best.scores, best.sources, best.objectives, self.names, more, trace)


@dataclass(frozen=True)
class Ranked:
    """Candidates of B users, best first, padded with 0; objectives [B, C, O], NaN where not ranked, or None.

    ``evidence`` [B, C] is what recall holds for each candidate; it stays with it whatever the order.
    """

    items: np.ndarray
    scores: np.ndarray
    sources: np.ndarray
    evidence: np.ndarray | None = None
    objectives: np.ndarray | None = None
    names: tuple[str, ...] = ()

    @classmethod
    def of(cls, found: Candidates) -> Ranked:
        """Recall's own order."""
        return cls(found.items, found.scores, found.sources, found.scores)

    def reordered(self, objectives: np.ndarray, names: tuple[str, ...], weights: Mapping[str, float]) -> Ranked:
        """Sort the first F candidates by a ranker's objectives [B, F, O], and recall's evidence where there is some.

        The others stay behind as reserves. Non-finite scores and padding sink to the end of the F;
        equal scores keep their order.
        """
        head = objectives.shape[1]
        if self.evidence is not None:
            objectives = np.concatenate([self.evidence[:, :head, None], objectives], axis=2)
            names = (RECALL, *names)
        scores = combine(objectives, names, weights)
        usable = np.isfinite(scores) & (self.items[:, :head] > 0)
        order = np.argsort(np.where(usable, -scores, np.inf), axis=1, kind="stable")
        rest = np.broadcast_to(np.arange(head, self.items.shape[1]), (len(order), self.items.shape[1] - head))
        order = np.concatenate([order, rest], axis=1)
        full_scores = np.concatenate([np.where(usable, scores, np.nan), self.scores[:, head:]], axis=1)
        full = np.full((*self.items.shape, objectives.shape[2]), np.nan, np.float32)
        full[:, :head] = objectives
        evidence = None if self.evidence is None else np.take_along_axis(self.evidence, order, 1)
        return Ranked(
            np.take_along_axis(self.items, order, 1),
            np.take_along_axis(full_scores, order, 1),
            np.take_along_axis(self.sources, order, 1),
            evidence,
            np.take_along_axis(full, order[:, :, None], 1),
            names,
        )

    def row(self, position: int) -> RankedRow:
        """One user's candidates without the padding."""
        places = np.flatnonzero(self.items[position])
        objectives = None if self.objectives is None else self.objectives[position]
        found = self.items[position], self.scores[position], self.sources[position]
        return RankedRow(*found, objectives, self.names).take(places)


def choose_slate(
    row: Row,
    ranked: RankedRow,
    excluded: np.ndarray,
    release: Release,
    settings: RankingSettings,
    now_s: float,
) -> Slate:
    """The best k usable candidates of one user.

    Args:
        excluded: [n] int32 item indices never to return.
        now_s: seconds since 1970, for items that appear or expire.
    """
    usable = ranked.take(_usable(row, ranked.items, excluded, release, now_s))
    caps = _caps(release, settings)
    chosen = usable.take(select(usable.items, usable.scores, row.k, caps, settings.diversity, release.vectors))
    if len(chosen.items) < row.k:
        chosen = _backfill(row, chosen, excluded, release, now_s)
    more = len(chosen.items) == row.k and len(row.shown) + row.k < MAX_ITEMS
    row.trace.counts[STAGE] = len(chosen.items)
    return chosen.slate(row.k, row.trace, more)


def _usable(row: Row, items: np.ndarray, excluded: np.ndarray, release: Release, now_s: float) -> np.ndarray:
    """Places of items that may be shown, each item once; counts the others by cause."""
    kept = np.ones(len(items), bool)
    tests = [
        ("duplicate", _first_places(items)),
        ("ineligible", release.catalogue.eligible(now_s)[items]),
        ("excluded", ~np.isin(items, excluded)),
    ]
    if row.filter:
        tests.append(("filtered", release.catalogue.mask(row.filter)[items]))
    for cause, passed in tests:
        removed = int(np.count_nonzero(kept & ~passed))
        if removed:
            row.trace.removed[cause] = row.trace.removed.get(cause, 0) + removed
        kept &= passed
    return np.flatnonzero(kept)


def _first_places(items: np.ndarray) -> np.ndarray:
    """[n] bool: the first place of each item."""
    first = np.zeros(len(items), bool)
    first[np.unique(items, return_index=True)[1]] = True
    return first


def _backfill(row: Row, chosen: RankedRow, excluded: np.ndarray, release: Release, now_s: float) -> RankedRow:
    """Fill up with popular items, flagged; fewer than k means the catalogue has no more to give."""
    unused = release.popular[~np.isin(release.popular, chosen.items)]
    spare = unused[_usable(replace(row, trace=Trace()), unused, excluded, release, now_s)][: row.k - len(chosen.items)]
    if len(spare):
        row.trace.degrade(STAGE, "backfilled_popular")
    if len(chosen.items) + len(spare) < row.k:
        row.trace.degrade(STAGE, "fewer_than_k")
    missing = np.full(len(spare), np.nan, np.float32)
    objectives = chosen.objectives
    if objectives is not None:
        objectives = np.concatenate([objectives, np.full((len(spare), objectives.shape[1]), np.nan, np.float32)])
    return RankedRow(
        np.concatenate([chosen.items, spare]),
        np.concatenate([chosen.scores, missing]),
        np.concatenate([chosen.sources, np.zeros(len(spare), np.uint8)]),
        objectives,
        chosen.names,
    )


def _caps(release: Release, settings: RankingSettings) -> Caps:
    return [(release.catalogue.codes(name), limit) for name, limit in settings.caps.items()]
