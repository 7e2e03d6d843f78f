"""Training-time histories: for any row, what its user had done, without the row itself.

Offline counterpart of the history the feature store keeps online; both are most recent first and
padded with 0.
"""

from __future__ import annotations

import numpy as np


class HistoryIndex:
    """Interactions by user in time order.

    Args:
        users, items: [n] int32 indices of one set of interactions.
        signals: [n] int8.
        times: [n] float64 seconds; None takes the order of the rows as time.
    """

    def __init__(self, users: np.ndarray, items: np.ndarray, signals: np.ndarray, times: np.ndarray | None = None):
        times = np.arange(len(users), dtype=np.float64) if times is None else np.asarray(times, np.float64)
        order = np.lexsort((times, users))
        self._items, self._signals = items[order].astype(np.int32), signals[order].astype(np.int8)
        self._moments = np.unique(times)
        self._keys = self._key(users[order], np.searchsorted(self._moments, times[order]))

    def latest(self, users: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """The most recent events of each user: history [B, length] int32, signal [B, length] int8."""
        return self._gather(users, np.searchsorted(self._keys, self._key(users + 1, 0)), length)

    def before(self, users: np.ndarray, times: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """Events strictly earlier than ``times`` [B]; shapes as `latest`."""
        moments = np.searchsorted(self._moments, times, side="left")
        return self._gather(users, np.searchsorted(self._keys, self._key(users, moments)), length)

    def others(self, users: np.ndarray, items: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        """The most recent events other than those with the target ``items`` [B]; shapes as `latest`."""
        history, signal = self.latest(users, length + 1)
        kept = history != items[:, None]
        order = np.argsort(~kept, axis=1, kind="stable")[:, :length]
        kept = np.take_along_axis(kept, order, 1)
        return np.take_along_axis(history, order, 1) * kept, np.take_along_axis(signal, order, 1) * kept

    @staticmethod
    def _key(users: np.ndarray, moments: np.ndarray | int) -> np.ndarray:
        return (np.asarray(users, np.int64) << 32) | moments

    def _gather(self, users: np.ndarray, ends: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
        starts = np.searchsorted(self._keys, self._key(users, 0))
        positions = ends[:, None] - 1 - np.arange(length)
        kept = positions >= starts[:, None]
        positions = np.where(kept, positions, 0)
        if not len(self._items):
            return np.zeros(positions.shape, np.int32), np.zeros(positions.shape, np.int8)
        return self._items[positions] * kept, self._signals[positions] * kept
