"""Request entropy: how evenly requests spread over scenes, items and users, and its fall as a sign of a hot event.

A crowd comes for something: before the rate has grown much, one item, one scene, or (when a few callers cause it) a
few users make up more of the requests than they used to.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SPREADER = np.uint64(0x9E3779B97F4A7C15)
"""2^64 over the golden ratio: multiplied with it, near keys land far apart (Knuth, vol. 3, section 6.4)."""
BUCKETS = 4_096
"""Counters for each axis. Keys that share one make the entropy a little lower, which is corrected for."""
LEAST_REQUESTS = 50
"""In a window; below, nothing is said."""


class EntropyWindow:
    """Collision entropy of one axis over a sliding window, with constant memory and no pass over the window.

    The collision entropy (Renyi's of order 2) is ``-log`` of the chance that two requests of the window ask for the
    same key. Unlike Shannon's, that chance has an unbiased estimate from any number of requests (Good, 1953; Simpson,
    1949), so more traffic of the same kind does not look like more entropy.

    Args:
        pane_s: the window moves by so much.
        panes: window length in panes.
    """

    def __init__(self, pane_s: float, panes: int):
        self.pane_s = pane_s
        self.counts = np.zeros((panes, BUCKETS), np.int64)
        self.pane = -1

    def add(self, time_s: float, keys: np.ndarray) -> None:
        """Count requests.

        Args:
            time_s: of all of them; what is earlier than the latest pane is counted in that.
            keys: whole numbers or hashes of whatever is asked for, [N] integers.
        """
        self.move(time_s)
        buckets = (np.asarray(keys).astype(np.uint64) * SPREADER) >> np.uint64(64 - BUCKETS.bit_length() + 1)
        np.add.at(self.counts[self.pane % len(self.counts)], buckets.astype(np.intp), 1)

    def move(self, time_s: float) -> None:
        """Let the window end at this time; what is older than it is forgotten."""
        pane = int(time_s // self.pane_s)
        if pane > self.pane:
            passed = min(pane - self.pane, len(self.counts))
            self.counts[np.arange(pane - passed + 1, pane + 1) % len(self.counts)] = 0
            self.pane = pane

    def requests(self) -> int:
        return int(self.counts.sum())

    def entropy_nats(self) -> float | None:
        """In natural units: the log of so many equally wanted keys. None for too few requests."""
        return collision_entropy(self.counts.sum(axis=0))

    def plain(self) -> dict[str, Any]:
        where = np.nonzero(self.counts)
        filled = [*(axis.tolist() for axis in where), self.counts[where].tolist()]
        return {"pane_s": self.pane_s, "panes": len(self.counts), "pane": self.pane, "filled": filled}

    @classmethod
    def restored(cls, plain: dict[str, Any]) -> EntropyWindow:
        window = cls(plain["pane_s"], plain["panes"])
        window.pane = plain["pane"]
        panes, buckets, counts = plain["filled"]
        window.counts[panes, buckets] = counts
        return window


def collision_entropy(counts: np.ndarray) -> float | None:
    """Of keys hashed to so many buckets, in nats; None for fewer than `LEAST_REQUESTS`.

    Args:
        counts: of each bucket, [B] integers; those of several replicas may be added up before.
    """
    requests = int(counts.sum())
    if requests < LEAST_REQUESTS:
        return None
    met = float((counts * (counts - 1)).sum()) / (requests * (requests - 1))
    by_chance = 1 / len(counts)  # two different keys share a bucket
    met = (met - by_chance) / (1 - by_chance)
    return -math.log(max(met, 1 / requests**2))


@dataclass(frozen=True)
class HotSign:
    """What one axis says now.

    Attributes:
        entropy_nats: now.
        usual_nats: of late.
        score: fall below the usual, in usual deviations; 0 while nothing is known.
        hot: the fall is far outside what is usual, and large.
    """

    axis: str
    entropy_nats: float | None
    usual_nats: float | None
    score: float
    hot: bool


@dataclass
class Usual:
    """Mean and mean deviation of an axis' entropy, learnt only from what is not hot."""

    mean: float = 0.0
    deviation: float = 0.0
    seen: int = 0

    def fall(self, now: float) -> tuple[float, float]:
        """How far an entropy lies below the usual: in its own unit, and in usual deviations; 0 before any was seen."""
        fall = self.mean - now if self.seen else 0.0
        return fall, fall / max(self.deviation, 0.01)

    def learn(self, now: float, learning: float) -> None:
        """A plain mean at first, a fading one later; what lasts becomes usual in the end, however hot it began."""
        self.seen += 1
        share = max(learning, 1 / self.seen)
        self.deviation += share * (abs(now - self.mean) - self.deviation) if self.seen > 1 else 0.0
        self.mean += share * (now - self.mean)


class RequestEntropy:
    """Windows over several axes and whether one of them shows a hot event.

    Call `add` with the requests of each moment, and `signs` once in a pane.

    Args:
        axes: names, such as scene, item and user.
        alarm: deviations below the usual that count as hot.
        least_fall_nats: and at least so much lower; 0.35 is a third fewer equally wanted keys.
        learning: share of a new reading in the usual.
    """

    READINGS = 10
    """Before so many, nothing is called hot."""

    def __init__(
        self,
        axes: Sequence[str] = ("scene", "item", "user"),
        *,
        pane_s: float = 5.0,
        panes: int = 12,
        alarm: float = 5.0,
        least_fall_nats: float = 0.35,
        learning: float = 0.02,
    ):
        self.windows = {axis: EntropyWindow(pane_s, panes) for axis in axes}
        self.usual = {axis: Usual() for axis in axes}
        self.alarm, self.least_fall_nats, self.learning = alarm, least_fall_nats, learning

    def add(self, time_s: float, keys: dict[str, np.ndarray]) -> None:
        """Count requests by axis.

        Raises:
            KeyError: an axis that was not declared.
        """
        for axis, values in keys.items():
            self.windows[axis].add(time_s, values)

    def signs(self, time_s: float) -> tuple[HotSign, ...]:
        """What every axis says now, and take it into what is usual unless it is hot."""
        return tuple(self._sign(axis, window, time_s) for axis, window in self.windows.items())

    def plain(self) -> dict[str, Any]:
        usual = {axis: [each.mean, each.deviation, each.seen] for axis, each in self.usual.items()}
        limits = [self.alarm, self.least_fall_nats, self.learning]
        windows = {axis: window.plain() for axis, window in self.windows.items()}
        return {"windows": windows, "usual": usual, "limits": limits}

    @classmethod
    def restored(cls, plain: dict[str, Any]) -> RequestEntropy:
        made = cls(())
        made.windows = {axis: EntropyWindow.restored(each) for axis, each in plain["windows"].items()}
        made.usual = {axis: Usual(*each) for axis, each in plain["usual"].items()}
        made.alarm, made.least_fall_nats, made.learning = plain["limits"]
        return made

    def _sign(self, axis: str, window: EntropyWindow, time_s: float) -> HotSign:
        window.move(time_s)
        now, usual = window.entropy_nats(), self.usual[axis]
        if now is None:
            return HotSign(axis, None, usual.mean if usual.seen else None, 0.0, False)
        fall, score = usual.fall(now)
        hot = usual.seen >= self.READINGS and score >= self.alarm and fall >= self.least_fall_nats
        sign = HotSign(axis, now, usual.mean if usual.seen else None, score, hot)
        usual.learn(now, self.learning / 10 if hot else self.learning)
        return sign
