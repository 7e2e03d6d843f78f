"""Items that go together, as a table of neighbours with signed weights.

Small catalogues use EASE, whose weights are the closed form of a linear autoencoder with a zero
diagonal (Steck 2019, "Embarrassingly Shallow Autoencoders for Sparse Data"); its negative weights
carry as much as its positive ones, so the largest by magnitude are kept. Large ones use
co-occurrence cosine, shrunk so that pairs seen a few times rank below pairs seen often.
"""

# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false
# scipy.sparse has no usable types.

from __future__ import annotations

from functools import cached_property
from pathlib import Path

import numpy as np
import scipy.sparse as sp

from configs.errors import ArtifactError
from features.encoding import FIRST_KNOWN
from recall.index import best_first

EASE_UP_TO = 10_000
"""Items up to which the dense inverse is taken; one 10,000 x 10,000 float64 matrix is 800 MB."""
SHRINKAGE = 20.0
BLOCK = 2_000
NEIGHBOURS_FILE = "neighbours.npz"


class NeighbourTable:
    """For each item its M neighbours: items [I + 2, M] int32 padded with 0, weights [I + 2, M] float32."""

    def __init__(self, items: np.ndarray, weights: np.ndarray):
        self.items, self.weights = items, weights
        kept = items > 0
        starts = np.concatenate([[0], np.cumsum(kept.sum(1))])
        self._matrix = sp.csr_matrix((weights[kept], items[kept], starts), shape=(len(items), len(items)))

    def __len__(self) -> int:
        """Rows: items + 2."""
        return len(self.items)

    def reached(self, history: np.ndarray, gains: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
        """All neighbours of each history [B, H] int32 with their summed weights, in no order.

        Args:
            gains: [B, H] float32 scales of the events; 1 when absent.
        Returns:
            items [B, W] int32 padded with 0 and scores [B, W] float32, -inf at padding.
        """
        rows, places = np.nonzero((history >= FIRST_KNOWN) & (history < len(self)))
        values = np.ones(len(rows), np.float32) if gains is None else gains[rows, places].astype(np.float32)
        starts = np.searchsorted(rows, np.arange(len(history) + 1))
        seen = sp.csr_matrix((values, history[rows, places], starts), shape=(len(history), len(self)))
        found = (seen @ self._matrix).tocsr()
        counts = np.diff(found.indptr)
        filled = np.arange(counts.max(initial=0)) < counts[:, None]
        items, scores = np.zeros(filled.shape, np.int32), np.full(filled.shape, -np.inf, np.float32)
        items[filled], scores[filled] = found.indices, found.data
        return items, scores

    def affinities(self, history: np.ndarray, gains: np.ndarray) -> np.ndarray:
        """Summed weights of every item with each history [B, H] int32, [B, I + 2] float64, -inf where there are none.

        For small catalogues, of which a history reaches a good part: quicker there than `reached`.

        Args:
            gains: [B, H] float32 scales of the events.
        """
        items, weights = self._wide
        out = np.empty((len(history), len(self)))
        for row, (events, scales) in enumerate(zip(history, gains, strict=True)):
            places = np.flatnonzero((events >= FIRST_KNOWN) & (events < len(self)) & (scales != 0))
            events, scales = events[places], scales[places]
            found = weights.take(events, 0)
            if not (scales == 1).all():
                found *= scales[:, None]
            out[row] = np.bincount(items.take(events, 0).ravel(), found.ravel(), len(self))
        return np.where(out != 0, out, -np.inf)

    @cached_property
    def _wide(self) -> tuple[np.ndarray, np.ndarray]:
        """The table in the types that `np.bincount` works in, so that it need not convert."""
        return self.items.astype(np.int64), self.weights.astype(np.float64)

    def save(self, folder: Path) -> None:
        np.savez(folder / NEIGHBOURS_FILE, items=self.items, weights=self.weights)

    @classmethod
    def load(cls, folder: Path, items: int | None = None) -> NeighbourTable:
        """Raises ArtifactError when the file is unreadable or made for another number of items."""
        path = folder / NEIGHBOURS_FILE
        try:
            with np.load(path, allow_pickle=False) as arrays:
                table = (arrays["items"], arrays["weights"])
        except (OSError, ValueError, KeyError) as error:
            raise ArtifactError(f"{path}: not readable ({error}); rebuild the release") from error
        if items is not None and len(table[0]) != items + FIRST_KNOWN:
            raise ArtifactError(f"{path}: {len(table[0]) - FIRST_KNOWN} items, the release has {items}; rebuild it")
        return cls(*table)


def train_neighbours(matrix: sp.csr_matrix, keep: int, ease_l2: float = 500.0) -> NeighbourTable:
    """Neighbours from interactions [U, I + 2] of 0 and 1, by the method that fits the catalogue's size."""
    if matrix.shape[1] <= EASE_UP_TO:
        return top_neighbours(ease_weights(matrix, ease_l2), keep)
    return shrunk_cosine(matrix, keep)


def ease_weights(matrix: sp.csr_matrix, l2: float) -> np.ndarray:
    """EASE weights [I + 2, I + 2] float32: B = I - P diag(1 / P), P the inverse of (X'X + l2 I)."""
    gram = np.asarray((matrix.T @ matrix).todense(), np.float64)
    gram[np.diag_indices_from(gram)] += l2
    precision = np.linalg.inv(gram)
    weights = (-precision / np.diag(precision)[None, :]).astype(np.float32)
    np.fill_diagonal(weights, 0.0)
    return weights


def shrunk_cosine(matrix: sp.csr_matrix, keep: int, shrinkage: float = SHRINKAGE) -> NeighbourTable:
    """Cosine of co-occurrence times n / (n + shrinkage), n the users a pair has in common.

    Computed in blocks of rows, so memory stays at a block's co-occurrences.
    """
    size = matrix.shape[1]
    norms = np.sqrt(np.maximum(np.asarray(matrix.sum(0)).ravel(), 1.0)).astype(np.float32)
    items, weights = np.zeros((size, keep), np.int32), np.zeros((size, keep), np.float32)
    transposed = matrix.T.tocsr()
    for start in range(0, size, BLOCK):
        together = (transposed[start : start + BLOCK] @ matrix).tocsr()
        for row in range(together.shape[0]):
            lo, hi = together.indptr[row], together.indptr[row + 1]
            others, counts = together.indices[lo:hi], together.data[lo:hi]
            cosine = counts / (norms[start + row] * norms[others]) * counts / (counts + shrinkage)
            cosine[(others == start + row) | (others < FIRST_KNOWN)] = 0.0
            best = np.argsort(-cosine, kind="stable")[:keep]
            best = best[cosine[best] > 0]
            items[start + row, : len(best)], weights[start + row, : len(best)] = others[best], cosine[best]
    return NeighbourTable(items, weights)


def top_neighbours(weights: np.ndarray, keep: int) -> NeighbourTable:
    """The `keep` weights of each row of [I + 2, I + 2] that are largest by magnitude."""
    magnitude = np.abs(weights)
    magnitude[:, :FIRST_KNOWN] = 0.0
    columns = np.broadcast_to(np.arange(weights.shape[1], dtype=np.int32), weights.shape)
    items, size = best_first(columns, np.where(magnitude > 0, magnitude, -np.inf), keep)
    return NeighbourTable(items, np.where(size > 0, np.take_along_axis(weights, items, 1), 0).astype(np.float32))
