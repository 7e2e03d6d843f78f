"""Training examples for the two-tower: a user's recent events, split at random into seen and asked."""

# pyright: reportArgumentType=false, reportCallIssue=false
# scipy.sparse has no usable types.

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
import scipy.sparse as sp
import scipy.sparse.linalg

from features.datasets import IndexedInteractions
from features.encoding import FIRST_KNOWN
from recall.recipes import TowerSettings

NO_SIZE = 1e-10
"""A singular value below this share of the largest is zero but for rounding."""


@dataclass(frozen=True)
class TowerBatch:
    """users [B] int32; history [B, L] int32 and signal [B, L] int8 with hidden events zeroed; asked [B, L] bool.

    ``events`` [B, L] int32 are all the events; `asked` marks those the tower must find.
    """

    users: np.ndarray
    events: np.ndarray
    history: np.ndarray
    signal: np.ndarray
    asked: np.ndarray

    def take(self, rows: slice) -> TowerBatch:
        """Some of the users."""
        return TowerBatch(*(getattr(self, column.name)[rows] for column in fields(self)))


class TowerExamples:
    """Batches of users with enough events; each batch follows from (seed, step) alone.

    Args:
        rows: training interactions.
        history_length: events the tower sees in serving; training hides none beyond it but asks of them too.
    """

    def __init__(self, rows: IndexedInteractions, history_length: int, settings: TowerSettings, seed: int):
        self._settings, self._seed, self._length = settings, seed, history_length
        known = (rows.users >= FIRST_KNOWN) & (rows.items >= FIRST_KNOWN)
        rows = rows.take(np.flatnonzero(known))
        counts = np.bincount(rows.users, minlength=1)
        self.users = np.flatnonzero(counts >= 2).astype(np.int32)
        self._span = int(min(settings.span, counts.max(initial=1)))
        self._histories = rows.histories()
        self.steps_per_epoch = -(-len(self.users) // settings.batch)
        self._epoch, self._order = -1, self.users

    def batch(self, step: int) -> TowerBatch:
        return self._draw(self._users(step), np.random.default_rng((self._seed, step, 2)))

    def part(self, step: int, place: int, parts: int) -> TowerBatch:
        """One of the parts that a step's users are cut into; none has users when there are too few.

        Each draws for itself, so the parts together are not what `batch` draws for the same users.
        """
        users = np.array_split(self._users(step), parts)[place]
        return self._draw(users, np.random.default_rng((self._seed, step, 2, place)))

    def _users(self, step: int) -> np.ndarray:
        epoch, place = divmod(step, self.steps_per_epoch)
        if epoch != self._epoch:
            self._epoch, self._order = epoch, np.random.default_rng((self._seed, epoch, 1)).permutation(self.users)
        return self._order[place * self._settings.batch : (place + 1) * self._settings.batch]

    def _draw(self, users: np.ndarray, rng: np.random.Generator) -> TowerBatch:
        events, signal = self._histories.latest(users, self._span)
        width = max(1, int((events > 0).sum(1).max(initial=1)))
        events, signal = events[:, :width], signal[:, :width]
        present = events > 0
        asked = present & self._hide(rng, present)
        # The same item may have been met twice; the tower must not see a copy of what it is asked.
        seen = present & ~asked & ~_repeats(events, asked)
        seen &= np.cumsum(seen, 1) <= self._length
        seen &= rng.random((len(users), 1)) >= self._settings.history_dropout
        return TowerBatch(users, events, events * seen, signal * seen, asked)

    def _hide(self, rng: np.random.Generator, present: np.ndarray) -> np.ndarray:
        """[B, L] bool: each event with probability held_out, and at least one a row."""
        draws = rng.random(present.shape)
        hidden = draws < self._settings.held_out
        first = np.where(present, draws, 2.0).argmin(1)
        hidden[np.arange(len(hidden)), first] = True
        return hidden


def interaction_matrix(rows: IndexedInteractions, item_rows: int) -> sp.csr_matrix:
    """Users by items, [U, I + 2] float32, 1 where a known item was met."""
    kept = rows.items >= FIRST_KNOWN
    users, items = rows.users[kept], rows.items[kept]
    shape = (int(users.max(initial=0)) + 1, item_rows)
    matrix = sp.csr_matrix((np.ones(len(users), np.float32), (users, items)), shape=shape)
    matrix.data[:] = 1.0
    return matrix


def spectral_vectors(matrix: sp.csr_matrix, width: int) -> np.ndarray | None:
    """Right singular vectors [I + 2, K] float32 of the degree-normalised matrix, K <= width; None when too small.

    Starting there instead of at noise saves most of the epochs a short training has.
    """
    rank = min(width, min(matrix.shape) - 1)
    if rank < 1 or matrix.nnz <= rank:
        return None
    left, right = (np.maximum(np.asarray(matrix.sum(axis)).ravel(), 1.0) ** -0.5 for axis in (1, 0))
    scaled = sp.diags(left) @ matrix @ sp.diags(right)
    try:
        _, sizes, vectors = scipy.sparse.linalg.svds(scaled.astype(np.float64), k=rank, random_state=0)
    except scipy.sparse.linalg.ArpackError:
        return None
    if (nothing := sizes < NO_SIZE * sizes.max()).any():
        # The matrix has a lower rank: ARPACK fills up with directions of its own, others each time.
        vectors[nothing], vectors[:, np.asarray(matrix.sum(0)).ravel() == 0] = 0.0, 0.0
    # The sign of a singular vector is arbitrary; fixing it, and that of zeros, makes runs repeatable.
    signs = np.sign(vectors[np.arange(rank), np.abs(vectors).argmax(1)])
    return np.ascontiguousarray((vectors * signs[:, None] + 0.0).T[:, ::-1], np.float32)


def _repeats(events: np.ndarray, asked: np.ndarray) -> np.ndarray:
    """[B, L] bool: events whose item is asked somewhere in their row."""
    rows, places = np.nonzero(events)
    keys = (rows << 32) | events[rows, places]
    out = np.zeros(events.shape, bool)
    out[rows, places] = np.isin(keys, keys[asked[rows, places]])
    return out
