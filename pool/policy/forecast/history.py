"""What demand was, slot by slot: a ring of mean rates over the last days."""

from __future__ import annotations

import math
from typing import Any

import numpy as np


class SlotHistory:
    """Mean rate of each slot, of the latest ones; NaN where nothing was observed.

    Slots are numbered from the epoch on. The latest one grows while observations come in.
    """

    def __init__(self, slots: int):
        self.rates = np.full(slots, np.nan)
        self.latest = -1
        self.seen = 0

    def add(self, slot: int, rate: float) -> None:
        """Take one observation into its slot; slots left out in between are unknown."""
        assert slot >= self.latest, f"slot {slot} after {self.latest}"
        size = len(self.rates)
        if slot > self.latest:
            skipped = min(slot - self.latest, size) if self.latest >= 0 else 1
            self.rates[np.arange(slot - skipped + 1, slot + 1) % size] = np.nan
            self.latest, self.seen = slot, 0
        place = slot % size
        before = self.rates[place] if self.seen else 0.0
        self.seen += 1
        self.rates[place] = before + (rate - before) / self.seen

    def at(self, position: np.ndarray) -> np.ndarray:
        """Rates at positions in slots, float64 of the same shape, between two slots by a straight line.

        A whole number is the middle of that slot. NaN before the first slot, after the latest, and where a slot is
        unknown.
        """
        below = np.floor(position)
        fraction = position - below
        rates = self._slots(below.astype(np.int64))
        if fraction.any():
            above = self._slots(below.astype(np.int64) + 1)
            rates = np.where(fraction > 0, rates + fraction * (above - rates), rates)
        return rates

    def days(self, slots_of_day: int) -> int:
        """Whole days before the latest slot that the ring holds."""
        return max(0, len(self.rates) // slots_of_day - 1)

    def plain(self) -> dict[str, Any]:
        kept = [None if math.isnan(rate) else rate for rate in self.rates.tolist()]
        return {"rates": kept, "latest": self.latest, "seen": self.seen}

    @classmethod
    def restored(cls, plain: dict[str, Any]) -> SlotHistory:
        history = cls(len(plain["rates"]))
        history.rates = np.array(plain["rates"], np.float64)
        history.latest, history.seen = int(plain["latest"]), int(plain["seen"])
        return history

    def _slots(self, slots: np.ndarray) -> np.ndarray:
        size = len(self.rates)
        known = (slots <= self.latest) & (slots > self.latest - size) & (slots >= 0)
        begin = self.latest - self.latest % size  # of the ring's round: earlier slots lie at negative places
        return np.where(known, self.rates[np.where(known, slots - begin, 0)], np.nan)
