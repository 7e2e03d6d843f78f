"""How many requests come when: rates over virtual time, and times of single requests drawn from them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Demand:
    """The requests of one service.

    Attributes:
        at_s: seconds after the start, rising, [K].
        per_s: rate at each, [K]; a straight line in between, and the first or last one outside.
        arrivals_s: ascending times of single requests [N], where those are known.
    """

    at_s: NDArray[np.float64]
    per_s: NDArray[np.float64]
    arrivals_s: NDArray[np.float64] | None = None

    @classmethod
    def constant(cls, per_s: float) -> Demand:
        return cls(np.zeros(1), np.array([per_s]))

    def rate_per_s(self, now_s: float) -> float:
        return float(np.interp(now_s, self.at_s, self.per_s))

    def expected(self, from_s: float, until_s: float) -> float:
        """Requests between two times, by the rates."""
        inside = self.at_s[(self.at_s > from_s) & (self.at_s < until_s)]
        points = np.concatenate([[from_s], inside, [until_s]])
        return float(np.trapezoid(np.interp(points, self.at_s, self.per_s), points))

    def count(self, from_s: float, until_s: float, rng: np.random.Generator) -> int:
        """Requests that come from one time up to another."""
        if self.arrivals_s is not None:
            first, last = np.searchsorted(self.arrivals_s, (from_s, until_s))
            return int(last - first)
        return int(rng.poisson(self.expected(from_s, until_s)))

    def times_s(self, from_s: float, until_s: float, rng: np.random.Generator) -> NDArray[np.float64]:
        """Times of the requests that come from one time up to another, ascending.

        A Poisson process by thinning: P. Lewis, G. Shedler, "Simulation of nonhomogeneous Poisson processes by
        thinning", Naval Research Logistics Quarterly 26(3), 1979.
        """
        if self.arrivals_s is not None:
            first, last = np.searchsorted(self.arrivals_s, (from_s, until_s))
            return self.arrivals_s[first:last]
        inside = self.per_s[(self.at_s > from_s) & (self.at_s < until_s)]
        highest = max(self.rate_per_s(from_s), self.rate_per_s(until_s), *inside.tolist(), 0.0)
        drawn = np.sort(rng.uniform(from_s, until_s, rng.poisson(highest * (until_s - from_s))))
        kept = rng.random(len(drawn)) * highest < np.interp(drawn, self.at_s, self.per_s)
        return drawn[kept]
