"""One candidate list from several sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from features.encoding import FIRST_KNOWN
from recall.sources import SourceResult

SOURCE_NAMES = ("ann", "item_to_item", "popular", "fresh")
"""Source i sets bit i of the provenance."""
WEIGHTS = {"ann": 1.0, "item_to_item": 1.0, "popular": 0.02, "fresh": 0.01}
"""How much a source's evidence counts. The two personal sources count alike (on MovieLens-1M's
validation rows anything from 0.5 to 1.5 did as well); the others only order what those leave open."""


@dataclass(frozen=True)
class Merged:
    """items [B, C] int32 best first and padded with 0; scores [B, C] float32, 0 at padding; sources [B, C] uint8."""

    items: np.ndarray
    scores: np.ndarray
    sources: np.ndarray


def merge(
    results: Mapping[str, SourceResult],
    quotas: Mapping[str, int],
    limit: int,
    weights: Mapping[str, float] = WEIGHTS,
    rows: int | None = None,
) -> Merged:
    """Unite the sources' usable items, each once, best combined evidence first.

    A source's evidence for an item is its score above the worst it returned, in standard deviations
    of its list, times the source's weight; evidence adds up. On MovieLens-1M's validation rows this
    gave NDCG@10 .2412 against .2399 for reciprocal ranks, and the same R@10.

    Args:
        quotas: most items taken of each source; a source without a quota gives none.
        limit: most candidates a row.
        rows: B, needed only when results are empty.
    """
    known = {name: result for name, result in results.items() if quotas.get(name, 0) > 0}
    unknown = sorted(set(known) - set(SOURCE_NAMES))
    if unknown:
        raise ValueError(f"unknown sources {unknown}; known: {list(SOURCE_NAMES)}")
    size = rows if rows is not None else max((len(r.items) for r in known.values()), default=0)
    parts = [_entries(name, result, quotas[name], weights.get(name, 0.0)) for name, result in known.items()]
    if not parts or not size:
        return Merged(*(np.zeros((size, 0), kind) for kind in (np.int32, np.float32, np.uint8)))
    keys, evidence, bits = (np.concatenate(column) for column in zip(*parts, strict=True))
    # Within a source items are distinct, so adding bits is the same as or-ing them.
    distinct, entry = np.unique(keys, return_inverse=True)
    total = np.bincount(entry, evidence, len(distinct))
    sources = np.bincount(entry, bits, len(distinct)).astype(np.uint8)
    return _padded(distinct, total, sources, size, limit)


def source_names(mask: int) -> list[str]:
    """Names of the sources in a provenance bitmask."""
    return [name for bit, name in enumerate(SOURCE_NAMES) if mask >> bit & 1]


def _entries(name: str, result: SourceResult, quota: int, weight: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Keys (row << 32 | item), evidence and bits of a source's items, flat."""
    items, scores = result.items[:, :quota], result.scores[:, :quota].astype(np.float64)
    filled = (items >= FIRST_KNOWN) & np.isfinite(scores)
    count = np.maximum(filled.sum(1, keepdims=True), 1)
    safe = np.where(filled, scores, 0.0)
    mean = safe.sum(1, keepdims=True) / count
    spread = np.sqrt((np.where(filled, safe - mean, 0.0) ** 2).sum(1, keepdims=True) / count)
    lowest = np.where(filled, scores, np.inf).min(1, keepdims=True, initial=np.inf)
    evidence = weight * (safe - np.where(np.isfinite(lowest), lowest, 0.0)) / np.where(spread > 0, spread, 1.0)
    owners, _ = np.nonzero(filled)
    keys = (owners << 32) | items[filled]
    return keys, evidence[filled], np.full(len(keys), 1 << SOURCE_NAMES.index(name), np.int64)


def _padded(keys: np.ndarray, total: np.ndarray, sources: np.ndarray, rows: int, limit: int) -> Merged:
    """Flat entries sorted by key to arrays [rows, C], best first."""
    owners = keys >> 32
    order = np.lexsort((-total, owners))
    owners, keys, total, sources = owners[order], keys[order], total[order], sources[order]
    place = np.arange(len(keys)) - np.searchsorted(owners, owners)
    kept = place < limit
    width = int(place[kept].max(initial=-1)) + 1
    out = Merged(*(np.zeros((rows, width), kind) for kind in (np.int32, np.float32, np.uint8)))
    at = (owners[kept], place[kept])
    out.items[at], out.scores[at], out.sources[at] = keys[kept] & 0xFFFFFFFF, total[kept], sources[kept]
    return out
