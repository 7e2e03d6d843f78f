"""Post-processing: from ranked candidates to the slate.

Eligibility, the caller's filter and exclusions are applied here over the whole slate, whatever path
an item came by; then caps and diversity choose, and the slate is filled from the ranked reserves
and at last from the popular items.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from configs.settings import RankingSettings
from features.eligibility import allowed
from features.encoding import FIRST_KNOWN
from ranking.rerank import Caps, select
from serving.cursor import MAX_ITEMS
from serving.preparation import Row
from serving.ranked import Ranked, RankedRow
from serving.release import Release
from serving.types import Slate

STAGE = "post"
DEPTH = 3
"""A slate is first looked for among this many times k candidates."""


def choose_slates(
    rows: Sequence[Row],
    ranked: Ranked,
    excluded: np.ndarray,
    release: Release,
    settings: RankingSettings,
    now_s: float,
) -> list[Slate]:
    """The best k usable candidates of each user.

    Args:
        excluded: [B, E] int32 item indices never to return, padded with 0.
        now_s: seconds since 1970, for items that appear or expire.
    """
    caps = _caps(release, settings)
    width = ranked.items.shape[1]
    # Without trade-offs the slate is the first usable ones, which are nearly always among the very first.
    plain = not caps and not settings.diversity
    depth = min(width, DEPTH * max(row.k for row in rows)) if plain else width
    most = [row.k if plain else width for row in rows]
    found = ranked.rows(_usable(rows, ranked.items[:, :depth], excluded, release, now_s), most)
    slates = []
    for position, (row, chosen) in enumerate(zip(rows, found, strict=True)):
        if len(chosen.items) < row.k and depth < width:
            one = slice(position, position + 1)
            all_usable = _usable([row], ranked.items[one], excluded[one], release, now_s)
            [chosen] = ranked.part(one).rows(all_usable, [row.k])
        if not plain:
            chosen = _select(chosen, row.k, caps, settings.diversity, release)
        slates.append(_slate(row, chosen, excluded[position], release, now_s))
    return slates


def _select(usable: RankedRow, k: int, caps: Caps, diversity: float, release: Release) -> RankedRow:
    # Reserves have scores of an earlier stage, which do not compare: without one they stay behind, in order.
    scores = np.where(usable.settled, usable.scores, np.nan)
    return usable.take(select(usable.items, scores, k, caps, diversity, release.vectors))


def _slate(row: Row, chosen: RankedRow, excluded: np.ndarray, release: Release, now_s: float) -> Slate:
    if len(chosen.items) < row.k:
        chosen = _backfill(row, chosen, excluded, release, now_s)
    more = len(chosen.items) == row.k and len(row.shown) + row.k < MAX_ITEMS
    if row.debug:
        row.trace.removed = _removed(row, excluded, release, now_s)
    row.trace.counts[STAGE] = len(chosen.items)
    return chosen.slate(row.trace, more)


def _usable(rows: Sequence[Row], items: np.ndarray, excluded: np.ndarray, release: Release, now_s: float) -> np.ndarray:
    """Which of items [B, n] may be shown, each item once, [B, n] bool."""
    kept = allowed(items, excluded, release.catalogue.eligible(now_s))
    for position, row in enumerate(rows):
        if row.filter:
            kept[position] &= release.catalogue.mask(row.filter)[items[position]]
    return kept


def _usable_of(row: Row, items: np.ndarray, excluded: np.ndarray, release: Release, now_s: float) -> np.ndarray:
    """Places of one user's items [n] that may be shown."""
    return np.flatnonzero(_usable([row], items[None], excluded[None], release, now_s)[0])


def _removed(row: Row, excluded: np.ndarray, release: Release, now_s: float) -> dict[str, int]:
    """Items of the whole catalogue that could not be shown to this caller, each counted under its first cause."""
    catalogue = release.catalogue.snapshot()
    left = np.ones(len(catalogue), bool)
    left[:FIRST_KNOWN] = False
    causes = {"ineligible": ~catalogue.eligible(now_s)}
    if row.filter:
        causes["filtered"] = ~catalogue.mask(row.filter)
    causes["excluded"] = np.isin(np.arange(len(left)), excluded)
    counts = {}
    for cause, hit in causes.items():
        counts[cause] = int(np.count_nonzero(left & hit))
        left &= ~hit
    return {cause: count for cause, count in counts.items() if count}


def _backfill(row: Row, chosen: RankedRow, excluded: np.ndarray, release: Release, now_s: float) -> RankedRow:
    """Fill up with popular items, flagged, as far as the list of popular items goes."""
    unused = release.popular[~np.isin(release.popular, chosen.items)]
    spare = unused[_usable_of(row, unused, excluded, release, now_s)][: row.k - len(chosen.items)]
    if len(spare):
        row.trace.degrade(STAGE, "backfilled_popular")
    if len(chosen.items) + len(spare) < row.k:
        row.trace.degrade(STAGE, "fewer_than_k")
    return chosen.followed_by(spare)


def _caps(release: Release, settings: RankingSettings) -> Caps:
    return [(release.catalogue.codes(name), limit) for name, limit in settings.caps.items()]
