"""External ids as 64-bit hashes, and from a hash to an item index without the text.

A request brings hundreds of ids of past items. As text they cost a string each to read and a look into a
dictionary that no cache of a processor holds; as hashes they are an array as it lies in the store. A hash
is of the text alone, so it outlives a change of release. Two of a million ids share one with a probability
of 3 in 10^8 (the birthday bound); they would count as one item in histories.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from hashlib import blake2b

import numpy as np

from features.compiled import compiled

ID_BYTES = 8
REMEMBERED = 1 << 16
"""Ids whose hash is kept: writers meet the same items again and again."""


def id_hashes(ids: Sequence[str]) -> np.ndarray:
    """[n] uint64, never 0: BLAKE2b of the text in UTF-8, read as a little-endian number."""
    return np.fromiter(map(_hash, ids), np.uint64, len(ids))


@lru_cache(REMEMBERED)
def _hash(text: str) -> int:
    return _hashed(text)


def _hashed(text: str) -> int:
    return int.from_bytes(blake2b(text.encode(), digest_size=ID_BYTES).digest(), "little") or 1


class HashIndex:
    """A hash table from id hashes to rows, read by a compiled loop.

    Args:
        ids: distinct; the row of ``ids[i]`` is ``first + i``.
        first: row of the first id.
        absent: row of every other id.
    """

    def __init__(self, ids: Sequence[str], first: int, absent: int):
        self._absent, self._count = absent, 0
        self._table = self._empty(len(ids))
        self.add(ids, np.arange(first, first + len(ids), dtype=np.int32))

    def add(self, ids: Sequence[str], rows: np.ndarray) -> None:
        """Add distinct ids with their rows [n] int32; one that is there keeps its row. Others may look up meanwhile."""
        # A catalogue is hashed once; it must not push out what writers remember.
        hashes = np.fromiter(map(_hashed, ids), np.uint64, len(ids))
        keys, known = self._table
        self._count += len(ids)
        if 2 * self._count > len(keys):
            there = np.flatnonzero(keys)
            hashes, rows = np.concatenate([keys[there], hashes]), np.concatenate([known[there], rows])
            keys, known = self._empty(2 * self._count)
        _insert(hashes, np.ascontiguousarray(rows, np.int32), keys, known)
        self._table = keys, known

    def rows(self, hashes: np.ndarray) -> np.ndarray:
        """[n] int32 rows of the ids with the given hashes [n] uint64."""
        return _look_up(hashes, *self._table)

    def _empty(self, ids: int) -> tuple[np.ndarray, np.ndarray]:
        # At most half full, so that nearly every look-up ends at its first or second place.
        keys = np.zeros(1 << (2 * ids).bit_length(), np.uint64)
        return keys, np.full(len(keys), self._absent, np.int32)


@compiled("void(uint64[::1], int32[::1], uint64[::1], int32[::1])")
def _insert(hashes, new, keys, rows):
    """Linear probing; 0 marks a free place. Of two equal hashes the first is kept."""
    mask = np.uint64(len(keys) - 1)
    for place in range(len(hashes)):
        slot = hashes[place] & mask
        while keys[slot] != 0 and keys[slot] != hashes[place]:
            slot = (slot + np.uint64(1)) & mask
        if keys[slot] == 0:
            # The row first: a reader who finds the key must find its row.
            rows[slot] = new[place]
            keys[slot] = hashes[place]


@compiled("int32[::1](Array(uint64, 1, 'C', True), uint64[::1], int32[::1])")
def _look_up(hashes, keys, rows):
    """Rows [n] of hashes [n]; a free place of the table holds the row of absent ids."""
    mask = np.uint64(len(keys) - 1)
    found = np.empty(len(hashes), np.int32)
    for place in range(len(hashes)):
        slot = hashes[place] & mask
        while keys[slot] != 0 and keys[slot] != hashes[place]:
            slot = (slot + np.uint64(1)) & mask
        found[place] = rows[slot]
    return found
