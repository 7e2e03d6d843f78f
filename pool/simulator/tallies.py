"""What is counted while requests are simulated, in either of the two ways."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from pool.simulator.latencies import BINS


def _bins() -> NDArray[np.float64]:
    return np.zeros(BINS)


@dataclass
class Tally:
    """Of one service.

    Attributes:
        asked: requests that came.
        answered: those that got an answer, late or not; counted in ``counts`` by latency.
        late: answered after the objective.
        shed: refused, or answered with popular items, since they would have waited too long.
        lost: nobody was there to answer.
        retried: sent again, since whoever had them was lost.
    """

    asked: float = 0.0
    late: float = 0.0
    shed: float = 0.0
    lost: float = 0.0
    retried: float = 0.0
    counts: NDArray[np.float64] = field(default_factory=_bins)

    @property
    def answered(self) -> float:
        return float(self.counts.sum())

    @property
    def violations(self) -> float:
        """Late, shed and lost together."""
        return self.late + self.shed + self.lost


@dataclass
class Window:
    """What happened to one service since somebody looked last; ``queued`` is how many wait at the end of it.

    Attributes:
        busy_s: time that its replicas computed; up_s: time that they were there.
        counts: of latencies, [BINS].
    """

    arrived: float = 0.0
    violations: float = 0.0
    queued: float = 0.0
    busy_s: float = 0.0
    up_s: float = 0.0
    counts: NDArray[np.float64] = field(default_factory=_bins)

    @property
    def busy(self) -> float:
        return min(1.0, self.busy_s / self.up_s) if self.up_s else 0.0


@dataclass
class Use:
    """Time of devices, in seconds of a whole device, of the whole pool.

    Attributes:
        there_s: that devices were there. serving_s, working_s: that was used.
        leased_s: by whom it was leased, by service or work.
        used_s: the same of what was used.
    """

    there_s: float = 0.0
    serving_s: float = 0.0
    working_s: float = 0.0
    price: float = 0.0
    leased_s: dict[str, float] = field(default_factory=dict)
    used_s: dict[str, float] = field(default_factory=dict)
    leased_price: dict[str, float] = field(default_factory=dict)

    def lease(self, owner: str, seconds: float, price: float) -> None:
        self.leased_s[owner] = self.leased_s.get(owner, 0.0) + seconds
        self.leased_price[owner] = self.leased_price.get(owner, 0.0) + price

    def took(self, owner: str, seconds: float) -> None:
        self.used_s[owner] = self.used_s.get(owner, 0.0) + seconds
