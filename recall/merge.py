"""One candidate list from several sources."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from features.encoding import FIRST_KNOWN
from features.ordering import falling
from recall.index import best_first
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
    item_rows: int | None = None,
) -> Merged:
    """Unite the sources' usable items, each once, best combined evidence first.

    A source's evidence for an item is its score above the worst it returned, in standard deviations
    of its list, times the source's weight; evidence adds up. On MovieLens-1M's validation rows this
    gave NDCG@10 .2412 against .2399 for reciprocal ranks, and the same R@10.

    Args:
        quotas: most items taken of each source; a source without a quota gives none.
        limit: most candidates a row.
        rows: B, needed only when results are empty.
        item_rows: I + 2 of a catalogue so small that a table of all its items is quicker than sorting; else None.
    """
    known = {name: result for name, result in results.items() if quotas.get(name, 0) > 0}
    unknown = sorted(set(known) - set(SOURCE_NAMES))
    if unknown:
        raise ValueError(f"unknown sources {unknown}; known: {list(SOURCE_NAMES)}")
    size = rows if rows is not None else max((len(r.items) for r in known.values()), default=0)
    parts = [_entries(name, result, quotas[name], weights.get(name, 0.0)) for name, result in known.items()]
    if not parts or not size:
        return Merged(*(np.zeros((size, 0), kind) for kind in (np.int32, np.float32, np.uint8)))
    if item_rows is not None:
        return _best_of_table(parts, size, item_rows, limit)
    items, evidence, bits = (np.concatenate(column, axis=1) for column in zip(*parts, strict=True))
    return _best(*_united(items, evidence, bits), limit)


def source_names(mask: int) -> list[str]:
    """Names of the sources in a provenance bitmask."""
    return [name for bit, name in enumerate(SOURCE_NAMES) if mask >> bit & 1]


def _entries(name: str, result: SourceResult, quota: int, weight: float) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """A source's items [B, n] int32 padded with 0, the evidence for them and its bit."""
    items, scores = result.items[:, :quota], result.scores[:, :quota].astype(np.float64)
    bit = np.full(items.shape, 1 << SOURCE_NAMES.index(name), np.uint8)
    filled = (items >= FIRST_KNOWN) & np.isfinite(scores)
    if filled.all() and items.size:
        spread = scores.std(1, keepdims=True)
        return items, weight * (scores - scores.min(1, keepdims=True)) / np.where(spread > 0, spread, 1.0), bit
    count = np.maximum(filled.sum(1, keepdims=True), 1)
    safe = np.where(filled, scores, 0.0)
    mean = safe.sum(1, keepdims=True) / count
    spread = np.sqrt((np.where(filled, safe - mean, 0.0) ** 2).sum(1, keepdims=True) / count)
    lowest = np.where(filled, scores, np.inf).min(1, keepdims=True, initial=np.inf)
    evidence = weight * (safe - np.where(np.isfinite(lowest), lowest, 0.0)) / np.where(spread > 0, spread, 1.0)
    return np.where(filled, items, 0).astype(np.int32), evidence, bit


def _best_of_table(
    parts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], rows: int, item_rows: int, limit: int
) -> Merged:
    """What `_united` and `_best` give, by a place for every item."""
    evidence, sources = np.zeros((rows, item_rows)), np.zeros((rows, item_rows), np.uint8)
    at = np.arange(rows)[:, None]
    for items, each, bits in parts:
        # Within a source items are distinct, padding apart, so no addition is lost.
        evidence[at, items] += each
        sources[at, items] |= bits
    sources[:, :FIRST_KNOWN] = 0
    every = np.broadcast_to(np.arange(item_rows, dtype=np.int32), evidence.shape)
    width = min(limit, int(np.count_nonzero(sources, axis=1).max(initial=0)))
    items, scores = best_first(every, np.where(sources > 0, evidence, -np.inf), width)
    return Merged(items, np.where(items > 0, scores, 0).astype(np.float32), sources[at, items])


def _united(items: np.ndarray, evidence: np.ndarray, bits: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Each item of a row once, [B, W], in the order of the items, with what its entries add up to.

    Padding comes out as item 0 with evidence -inf.
    """
    rows, width = items.shape
    # Item and place in one number: a plain sort is several times quicker than one that gives the order back.
    keys = np.sort((items.astype(np.int64) << 32) | np.arange(width), axis=1)
    items, places = (keys >> 32).astype(np.int32), keys & 0xFFFFFFFF
    at = np.arange(rows)[:, None]
    first = np.ones(items.shape, bool)
    first[:, 1:] = items[:, 1:] != items[:, :-1]
    starts = np.flatnonzero(first)
    owners, targets = starts // width, (np.cumsum(first, axis=1) - 1)[first]
    out = np.zeros(items.shape, np.int32), np.full(items.shape, -np.inf), np.zeros(items.shape, np.uint8)
    out[0][owners, targets] = items[first]
    out[1][owners, targets] = np.add.reduceat(evidence[at, places].ravel(), starts)
    # Within a source items are distinct, so adding bits is the same as or-ing them.
    out[2][owners, targets] = np.add.reduceat(bits[at, places].ravel(), starts)
    out[1][out[0] == 0] = -np.inf
    return out


def _best(items: np.ndarray, evidence: np.ndarray, sources: np.ndarray, limit: int) -> Merged:
    """The first ``limit`` of each row by falling evidence; equal ones in the order of the items."""
    width = min(limit, int((items > 0).sum(1).max(initial=0)))
    order = falling(evidence)[:, :width]
    at = np.arange(len(items))[:, None]
    items, evidence, sources = items[at, order], evidence[at, order], sources[at, order]
    filled = items > 0
    return Merged(
        items, np.where(filled, evidence, 0).astype(np.float32), np.where(filled, sources, 0).astype(np.uint8)
    )
