"""What an index is worth after a part of its items changed, against one built afresh over the items as they are now."""

from __future__ import annotations

import time
from dataclasses import dataclass

import faiss
import numpy as np

from benchmarks.ann import DIM, containment, exact_top, sample_vectors
from recall.index import AnnIndex
from recall.index_spec import IndexSpec
from recall.streaming import StreamingIndex

EXACT_TOP, RETRIEVED = 100, 500
STEPS = 40
NEW, UPDATED, GONE = 0.08, 0.08, 0.04
"""Shares of the items that come, change and go: a fifth in all, the most that is filled in without training anew."""


@dataclass(frozen=True)
class Churn:
    """Containment of the exact top 100 in 500 retrieved: changes beside the index, changes in it, and built afresh."""

    items: int
    beside: float
    compacted: float
    fresh: float
    compaction_s: float

    @property
    def worst_of_fresh(self) -> float:
        return min(self.beside, self.compacted) / self.fresh


def churn(items: int, queries: int) -> Churn:
    """Change a fifth of the items in steps; half of the new ones are unlike anything that the index was trained on."""
    base, asked, alike = sample_vectors((items, queries, items), clusters=items // 250)
    [unlike] = sample_vectors((items,), clusters=items // 250, seed=1)
    vectors = np.concatenate([np.zeros((2, DIM), np.float32), base])
    waiting: list = []
    index = StreamingIndex(
        AnnIndex.build(vectors, IndexSpec.choose(items, DIM)), lambda name, work: waiting.append(work)
    )
    there = {place: vectors[place] for place in range(2, len(vectors))}
    chosen = np.random.default_rng(3).permutation(np.arange(2, items + 2))
    updated = np.array_split(chosen[: int(UPDATED * items)], STEPS)
    gone = np.array_split(chosen[-int(GONE * items) :], STEPS)
    new = np.array_split(np.arange(items + 2, items + 2 + int(NEW * items)), STEPS)
    for step in range(STEPS):
        ids = np.concatenate([updated[step], new[step]]).astype(np.int32)
        pool = alike if step % 2 else unlike
        put = pool[np.random.default_rng(step).choice(items, len(ids), replace=False)]
        index.apply(ids, put, gone[step].astype(np.int32))
        there |= dict(zip(ids.tolist(), put, strict=True))
        for place in gone[step].tolist():
            del there[place]
    names = np.array(sorted(there))
    current = np.array([there[place] for place in names.tolist()])
    exact = names[exact_top(current, asked, EXACT_TOP)]
    beside = containment(_asked(index, asked), exact)
    started_s = time.perf_counter()
    waiting.pop(0)()
    took_s = time.perf_counter() - started_s
    index.apply(np.zeros(0, np.int32), np.zeros((0, DIM), np.float32), np.zeros(0, np.int32))
    while waiting:  # what changed while the first was made
        waiting.pop(0)()
    compacted = containment(_asked(index, asked), exact)
    fresh = AnnIndex.build(np.concatenate([vectors[:2], current]), IndexSpec.choose(len(names), DIM))
    positions = np.concatenate([[0, 0], names])
    found = np.concatenate([positions[fresh.search(each[None], RETRIEVED).items] for each in asked])
    return Churn(items, beside, compacted, containment(found, exact), took_s)


def _asked(index: StreamingIndex, queries: np.ndarray) -> np.ndarray:
    return np.concatenate([index.search(query[None], RETRIEVED).items for query in queries])


def measure(items: int, queries: int) -> Churn:
    faiss.omp_set_num_threads(1)
    return churn(items, queries)
