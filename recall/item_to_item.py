"""Items that go together, as a table of neighbours with signed weights.

Small catalogues use EASE, whose weights are the closed form of a linear autoencoder with a zero
diagonal (Steck 2019, "Embarrassingly Shallow Autoencoders for Sparse Data"); its negative weights
carry as much as its positive ones, so the largest by magnitude are kept. Large ones use
co-occurrence cosine, shrunk so that pairs seen a few times rank below pairs seen often.
"""

# pyright: reportAttributeAccessIssue=false, reportOptionalSubscript=false
# scipy.sparse has no usable types.

from __future__ import annotations

from pathlib import Path

import numpy as np
import scipy.sparse as sp

from configs.errors import ArtifactError
from features.encoding import FIRST_KNOWN
from recall.index import best_first
from recall.kernels import best_keys, reached_keys

EASE_UP_TO = 10_000
"""Items up to which the dense inverse is taken; one 10,000 x 10,000 float64 matrix is 800 MB."""
SHRINKAGE = 20.0
BLOCK = 2_000
NEIGHBOURS_FILE = "neighbours.npz"


class NeighbourTable:
    """For each item its M neighbours: items [I + 2, M] int32 padded with 0, weights [I + 2, M] float32."""

    def __init__(self, items: np.ndarray, weights: np.ndarray):
        self.items, self.weights = items, weights

    def __len__(self) -> int:
        """Rows: items + 2."""
        return len(self.items)

    def reached(
        self,
        history: np.ndarray,
        gains: np.ndarray,
        excluded: np.ndarray,
        masks: np.ndarray,
        n: int,
        positive: bool = False,
    ) -> np.ndarray:
        """Keys [B, n] of the usable items whose summed weights with each history are largest.

        The arguments are those of `recall.kernels.reached_keys`.
        """
        # Items newer than the table may be excluded; they are no neighbours of anything.
        barred, sums = np.zeros(max(len(self), int(excluded.max(initial=0)) + 1), bool), np.zeros(len(self))
        history, gains = np.ascontiguousarray(history), np.ascontiguousarray(gains)
        keys = reached_keys(history, gains, self.items, self.weights, positive, excluded, masks, barred, sums)
        return best_keys(keys, n)

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
