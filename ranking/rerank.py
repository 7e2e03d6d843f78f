"""Choosing a slate from ranked items: caps per attribute and diversity.

Pure functions over arrays. Items that may not be shown are removed by the caller before; nothing
here adds an item.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from features.row_table import RowTable

Caps = Sequence[tuple[np.ndarray, int]]
"""Per cap: the values of an item field by item index, [I + 2] or [I + 2, L] int32 with 0 for no value,
and the most items of a slate that may share one value."""

WINDOW = 5
"""Diversity looks this many times k deep: past that, relevance has fallen too far to be traded."""


def select(
    items: np.ndarray,
    scores: np.ndarray,
    k: int,
    caps: Caps = (),
    diversity: float = 0.0,
    vectors: np.ndarray | RowTable | None = None,
) -> np.ndarray:
    """Places [m] int64 of the chosen items in slate order, m = min(k, n).

    Caps are kept while enough items allow it; the slate is then filled with the best of those that
    caps left out, after the others. Items with a non-finite score come last.

    Args:
        items: [n] item indices, each once.
        scores: [n], higher is better; equal scores keep their order.
        diversity: 0 ranks by score alone, 1 by unlikeness to the items above alone.
        vectors: [I + 2, D] float32 by item index; without them likeness is the share of cap fields in
            common, and without caps there is no diversity.
    """
    order = rank(scores)
    finite = int(np.isfinite(scores).sum())
    if diversity > 0 and finite > 1 and (vectors is not None or caps):
        depth = min(finite, WINDOW * k)
        likeness = _likeness(items[order[:depth]], caps, vectors)
        head = mmr(scores[order[:depth]], likeness, depth, diversity)
        order = np.concatenate([order[:depth][head], order[depth:]])
    return order[_capped(items[order], k, caps)]


def rank(scores: np.ndarray) -> np.ndarray:
    """Places [n] by falling score; non-finite scores last, equal ones in their order."""
    usable = np.isfinite(scores)
    return np.lexsort((np.where(usable, -scores.astype(np.float64), 0.0), ~usable))


def mmr(scores: np.ndarray, likeness: np.ndarray, k: int, diversity: float) -> np.ndarray:
    """Places [k] by maximal marginal relevance.

    Args:
        scores: [n] finite; scaled to [0, 1] so that ``diversity`` means the same for any ranker.
        likeness: [n, n] in [-1, 1].
    Source: Carbonell and Goldstein 1998, with lambda = 1 - diversity.
    """
    low, high = scores.min(), scores.max()
    gain = (1.0 - diversity) * (scores.astype(np.float64) - low) / max(float(high - low), 1e-12)
    nearest = np.zeros(len(scores))
    chosen = np.empty(min(k, len(scores)), np.int64)
    left = np.ones(len(scores), bool)
    for place in range(len(chosen)):
        best = int(np.argmax(np.where(left, gain - diversity * nearest, -np.inf)))
        chosen[place], left[best] = best, False
        nearest = likeness[best] if place == 0 else np.maximum(nearest, likeness[best])
    return chosen


def _likeness(items: np.ndarray, caps: Caps, vectors: np.ndarray | RowTable | None) -> np.ndarray:
    """[n, n] float32: cosine of item vectors, or the mean share of values in common over cap fields."""
    if vectors is not None:
        rows = vectors[items].astype(np.float32)
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
        return rows @ rows.T
    return np.mean([_overlap(_as_lists(codes)[items]) for codes, _ in caps], axis=0)


def _overlap(values: np.ndarray) -> np.ndarray:
    """Jaccard index of the value sets of n items, values [n, L] with 0 for none; [n, n] float32."""
    known, columns = np.unique(values, return_inverse=True)
    member = np.zeros((len(values), len(known)), np.float32)
    member[np.repeat(np.arange(len(values)), values.shape[1]), columns.ravel()] = 1.0
    member[:, known == 0] = 0.0
    both = member @ member.T
    sizes = member.sum(1)
    return both / np.maximum(sizes[:, None] + sizes[None, :] - both, 1.0)


def _capped(items: np.ndarray, k: int, caps: Caps) -> np.ndarray:
    """Places of the first k items that the caps allow, then of the first others up to k."""
    if not caps:
        return np.arange(min(k, len(items)))
    values = [(_as_lists(codes)[items], limit, {}) for codes, limit in caps]
    taken, spared = [], []
    for place in range(len(items)):
        if len(taken) == k:
            break
        rows = [([v for v in set(codes[place].tolist()) if v], limit, counts) for codes, limit, counts in values]
        if any(counts.get(v, 0) >= limit for mine, limit, counts in rows for v in mine):
            spared.append(place)
            continue
        taken.append(place)
        for mine, _, counts in rows:
            for v in mine:
                counts[v] = counts.get(v, 0) + 1
    return np.array((taken + spared)[:k], np.int64)


def _as_lists(codes: np.ndarray) -> np.ndarray:
    return codes if codes.ndim == 2 else codes[:, None]
