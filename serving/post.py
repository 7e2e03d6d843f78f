"""Post-processing: from ranked candidates to the slate.

Eligibility, the caller's filter and exclusions are applied here over the whole slate, whatever path
an item came by; then caps and diversity choose, and the slate is filled from the ranked reserves
and at last from the popular items.
"""

from __future__ import annotations

import numpy as np

from configs.settings import RankingSettings
from features.encoding import FIRST_KNOWN
from ranking.rerank import Caps, select
from serving.cursor import MAX_ITEMS
from serving.preparation import Row
from serving.ranked import RankedRow
from serving.release import Release
from serving.types import Slate

STAGE = "post"


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
    # Reserves have scores of an earlier stage, which do not compare: without one they stay behind, in order.
    scores = np.where(usable.settled, usable.scores, np.nan)
    chosen = usable.take(select(usable.items, scores, row.k, caps, settings.diversity, release.vectors))
    if len(chosen.items) < row.k:
        chosen = _backfill(row, chosen, excluded, release, now_s)
    more = len(chosen.items) == row.k and len(row.shown) + row.k < MAX_ITEMS
    if row.debug:
        row.trace.removed = _removed(row, excluded, release, now_s)
    row.trace.counts[STAGE] = len(chosen.items)
    return chosen.slate(row.k, row.trace, more)


def _usable(row: Row, items: np.ndarray, excluded: np.ndarray, release: Release, now_s: float) -> np.ndarray:
    """Places of items that may be shown, each item once."""
    kept = _first_places(items) & release.catalogue.eligible(now_s)[items] & ~np.isin(items, excluded)
    if row.filter:
        kept &= release.catalogue.mask(row.filter)[items]
    return np.flatnonzero(kept)


def _removed(row: Row, excluded: np.ndarray, release: Release, now_s: float) -> dict[str, int]:
    """Items of the whole catalogue that could not be shown to this caller, each counted under its first cause."""
    left = np.ones(len(release.catalogue), bool)
    left[:FIRST_KNOWN] = False
    causes = {"ineligible": ~release.catalogue.eligible(now_s)}
    if row.filter:
        causes["filtered"] = ~release.catalogue.mask(row.filter)
    causes["excluded"] = np.isin(np.arange(len(left)), excluded)
    counts = {}
    for cause, hit in causes.items():
        counts[cause] = int(np.count_nonzero(left & hit))
        left &= ~hit
    return {cause: count for cause, count in counts.items() if count}


def _first_places(items: np.ndarray) -> np.ndarray:
    """[n] bool: the first place of each item."""
    first = np.zeros(len(items), bool)
    first[np.unique(items, return_index=True)[1]] = True
    return first


def _backfill(row: Row, chosen: RankedRow, excluded: np.ndarray, release: Release, now_s: float) -> RankedRow:
    """Fill up with popular items, flagged, as far as the list of popular items goes."""
    unused = release.popular[~np.isin(release.popular, chosen.items)]
    spare = unused[_usable(row, unused, excluded, release, now_s)][: row.k - len(chosen.items)]
    if len(spare):
        row.trace.degrade(STAGE, "backfilled_popular")
    if len(chosen.items) + len(spare) < row.k:
        row.trace.degrade(STAGE, "fewer_than_k")
    return chosen.followed_by(spare)


def _caps(release: Release, settings: RankingSettings) -> Caps:
    return [(release.catalogue.codes(name), limit) for name, limit in settings.caps.items()]
