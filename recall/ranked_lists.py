"""Lists of items ranked offline for segments of users, and the two kinds Recpool keeps.

A segment is a value of one categorical profile field; users without a known value get the global
list. Both kinds work without timestamps: popularity then does not decay, and the last rows of the
catalogue count as its newest.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from configs.errors import ArtifactError
from features.datasets import IndexedInteractions
from features.encoding import FIRST_KNOWN, Encoder, UserBatch
from recall.index import best_first

DAY_S = 86_400.0
LIST_LENGTH = 5_000
PRIOR_EVENTS = 200.0
"""Events of everyone's taste added to each segment's counts, so that a small segment is not noise."""
PRIOR_DAYS = 30.0
NEW_SHARE, FEWEST_NEW = 0.05, 100
MOST_SEGMENTS = 64


@dataclass(frozen=True)
class RankedLists:
    """items [S, M] int32 best first and padded with 0, scores [S, M] float32; row 1 is the global list.

    ``column`` is the column of `UserBatch.cat` whose value picks the row; 0 when there is one list only.
    """

    items: np.ndarray
    scores: np.ndarray
    column: int = 0

    def rows_of(self, users: UserBatch) -> np.ndarray:
        """The list of each user, rows [B] int64 of ``items``."""
        if not self.column:
            return np.ones(len(users), np.int64)
        values = users.cat[:, self.column]
        return np.where((values > 0) & (values < len(self.items)), values, 1).astype(np.int64)

    @property
    def overall(self) -> np.ndarray:
        """Item indices [n] int32 of the global list, best first."""
        return self.items[1][self.items[1] > 0]

    def save(self, path: Path) -> None:
        np.savez(path, items=self.items, scores=self.scores, column=np.array(self.column))

    @classmethod
    def load(cls, path: Path, items: int | None = None) -> RankedLists:
        """Raises ArtifactError when the file is unreadable or points past the catalogue."""
        try:
            with np.load(path, allow_pickle=False) as arrays:
                lists = cls(arrays["items"], arrays["scores"], int(arrays["column"]))
        except (OSError, ValueError, KeyError) as error:
            raise ArtifactError(f"{path}: not readable ({error}); rebuild the release") from error
        if items is not None and lists.items.max(initial=0) >= items + FIRST_KNOWN:
            raise ArtifactError(f"{path}: points past the catalogue's {items} items; rebuild the release")
        return lists


def popular_lists(
    rows: IndexedInteractions, item_rows: int, users: UserBatch, column: int, half_life_days: float
) -> RankedLists:
    """Items by decayed count in each segment, pulled towards everyone's by `PRIOR_EVENTS`.

    Args:
        users: profiles by user index, [U + 2] rows.
        column: column of `users.cat` that gives the segment; 0 for the global list only.
    """
    weights = _decay(rows.times, half_life_days, len(rows))
    total = np.bincount(rows.items, weights, item_rows)[:item_rows]
    overall = total / max(total.sum(), 1e-12)
    segments = users.cat[rows.users, column] if column else np.ones(len(rows), np.int32)
    count = int(users.cat[:, column].max(initial=1)) + 1 if column else 2
    scores = np.bincount(segments * item_rows + rows.items, weights, count * item_rows).reshape(count, item_rows)
    scores = scores + PRIOR_EVENTS * overall
    scores[1] = total
    return _ranked(scores / np.maximum(scores.sum(1, keepdims=True), 1e-12), column)


def fresh_lists(rows: IndexedInteractions, item_rows: int, first_seen_s: np.ndarray | None) -> RankedLists:
    """The newest items by smoothed rate of events: (events + prior) / (days since first seen + `PRIOR_DAYS`).

    Args:
        first_seen_s: [I + 2] float64 seconds since 1970, NaN where unknown; None takes the order of
            the catalogue.
    """
    known = np.arange(FIRST_KNOWN, item_rows)
    seen = np.arange(item_rows, dtype=np.float64) * DAY_S if first_seen_s is None else first_seen_s
    seen = np.where(np.isfinite(seen), seen, -np.inf)
    count = min(len(known), max(FEWEST_NEW, int(NEW_SHARE * len(known))))
    newest = known[np.argsort(-seen[known], kind="stable")[:count]]
    events = np.bincount(rows.items, minlength=item_rows)[:item_rows]
    prior = len(rows) / max(1, len(known)) * 0.1
    last = seen[newest].max(initial=0.0)
    days = np.where(np.isfinite(seen[newest]), (last - seen[newest]) / DAY_S, 1e6)
    scores = np.full((2, item_rows), -np.inf)
    scores[:, newest] = (events[newest] + prior + 1e-6) / (days + PRIOR_DAYS)
    return _ranked(scores, 0)


def first_seen(rows: IndexedInteractions, item_rows: int, dates_s: np.ndarray | None = None) -> np.ndarray | None:
    """When each item came, [I + 2] float64 seconds: its own date, else its first event; None without any."""
    out = np.full(item_rows, np.inf)
    if rows.times is not None:
        np.minimum.at(out, rows.items, rows.times)
    out = np.where(np.isfinite(out), out, np.nan)
    if dates_s is not None:
        out = np.where(np.isfinite(dates_s), dates_s, out)
    return out if np.isfinite(out[FIRST_KNOWN:]).any() else None


def segment_column(encoder: Encoder, field: str | None = None) -> int:
    """The `UserBatch.cat` column that segments users: the field named, else the first with few enough values.

    Raises:
        ArtifactError: the named field is not a categorical profile field.
    """
    names = [f.name for f in encoder.schema.of("user", kind="categorical")]
    sizes = encoder.cat_sizes("user")
    if field is not None:
        if field not in names:
            raise ArtifactError(f"segment field {field!r} is not a categorical user field; known: {names}")
        return names.index(field) + 1
    return next((c for c in range(1, len(sizes)) if FIRST_KNOWN < sizes[c] <= MOST_SEGMENTS + FIRST_KNOWN), 0)


def _decay(times: np.ndarray | None, half_life_days: float, rows: int) -> np.ndarray:
    """[rows] float64: 1 for the latest event, halved with every half-life before it."""
    if times is None or not len(times):
        return np.ones(rows)
    return 0.5 ** ((times.max() - times) / (half_life_days * DAY_S))


def _ranked(scores: np.ndarray, column: int) -> RankedLists:
    """Order scores [S, I + 2]; items never met stay in, last, so that a catalogue is never exhausted early."""
    columns = np.broadcast_to(np.arange(scores.shape[1], dtype=np.int32), scores.shape)
    scores = scores.copy()
    scores[:, :FIRST_KNOWN] = -np.inf
    items, scores = best_first(columns, scores, LIST_LENGTH)
    # Places that no list fills would be looked through by every request that the list cannot satisfy.
    filled = items.any(0)
    return RankedLists(items[:, filled], scores[:, filled], column)
