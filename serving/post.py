"""Post-processing: from ranked candidates to the slate.

Eligibility, the caller's filter and exclusions are applied here over the whole slate, whatever path
an item came by; then caps and diversity choose, and the slate is filled from the ranked reserves
and at last from the popular items.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from configs.settings import RankingSettings
from ranking.rerank import Caps, select
from serving.cursor import MAX_ITEMS
from serving.preparation import Row
from serving.ranked import RankedRow
from serving.release import Release
from serving.types import Slate, Trace

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
    return chosen.followed_by(spare)


def _caps(release: Release, settings: RankingSettings) -> Caps:
    return [(release.catalogue.codes(name), limit) for name, limit in settings.caps.items()]
