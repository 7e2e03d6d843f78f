"""One candidate list from several sources."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from recall.kernels import best_keys, highest_item, read_united, united_keys
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
    """Unite the sources' usable items, each once, best combined evidence first; of equal ones the lower index.

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
    size = rows if rows is not None else max((len(r.keys) for r in known.values()), default=0)
    if not known or not size:
        return Merged(*(np.zeros((size, 0), kind) for kind in (np.int32, np.float32, np.uint8)))
    lists = [result.keys[:, : quotas[name]] for name, result in known.items()]
    ends = np.array(list(accumulate(keys.shape[1] for keys in lists)))
    given = np.array([weights.get(name, 0.0) for name in known])
    bits = np.array([1 << SOURCE_NAMES.index(name) for name in known], np.uint8)
    every = np.ascontiguousarray(np.concatenate(lists, 1))
    keys, sources = united_keys(every, ends, given, bits, np.zeros(highest_item(every) + 1))
    *found, width = read_united(best_keys(keys, limit), sources)
    return Merged(*(column[:, :width] for column in found))


def source_names(mask: int) -> list[str]:
    """Names of the sources in a provenance bitmask."""
    return [name for bit, name in enumerate(SOURCE_NAMES) if mask >> bit & 1]
