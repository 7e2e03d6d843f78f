"""What an autoscaler sees, what it says, and what a replica can do: the contract between live, tests and simulation."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from configs.errors import ConfigError


@dataclass(frozen=True)
class Signals:
    """What happened since the signals before, of all replicas together.

    Attributes:
        at_s: seconds since 1970 UTC, at the end of the interval; seasons follow from it.
        interval_s: length of the interval, above 0.
        arrived: requests that came in it, those that were refused included.
        queued: requests that wait now and are not being worked on.
        busy: of the running replicas' time in the interval the share that was used, 0..1.
        running: replicas that serve now.
        starting: replicas that were asked for and do not serve yet.
        violations: requests answered late or refused in the interval.
        entropy_bits: of what was asked for (collision entropy); None where nobody measures it.
    """

    at_s: float
    interval_s: float
    arrived: float
    queued: float
    busy: float
    running: int
    starting: int
    violations: float = 0.0
    entropy_bits: float | None = None


@dataclass(frozen=True)
class Target:
    """How many replicas there should be, starting ones included, and why in words."""

    replicas: int
    reasons: tuple[str, ...]


class Autoscaler(Protocol):
    """Decides once an interval. It has state of its own and neither clock nor chance: the same signals in the same
    order give the same targets, live, in tests and in simulation."""

    def decide(self, signals: Signals) -> Target: ...


@dataclass(frozen=True)
class ServiceCurve:
    """What one replica can do, as measured.

    Attributes:
        points: (requests a second of one replica, p99 in ms at that rate), rates rising.
        start_s: from the decision to the first answer of a new replica.

    Raises:
        ConfigError: no points, rates that do not rise, or a figure that is no positive number.
    """

    points: tuple[tuple[float, float], ...]
    start_s: float

    def __post_init__(self) -> None:
        if not self.points:
            raise ConfigError("points: no rate was measured; measure one replica at several rates")
        if not all(0 < figure < float("inf") for point in self.points for figure in point):
            raise ConfigError(f"points: {self.points} must be positive rates and latencies")
        if any(before[0] >= after[0] for before, after in pairwise(self.points)):
            raise ConfigError(f"points: rates {[rate for rate, _ in self.points]} must rise")
        if not 0 < self.start_s < float("inf"):
            raise ConfigError(f"start_s: {self.start_s} must be above 0; measure how long a replica takes to start")

    def p99_ms(self, rate_per_s: float) -> float:
        """Of one replica at this rate, between measured points by a straight line; infinite beyond the last one."""
        rates = [rate for rate, _ in self.points]
        above = bisect_right(rates, rate_per_s)
        if above == 0:
            return self.points[0][1]
        (low, before), (high, after) = self.points[above - 1], self.points[min(above, len(rates) - 1)]
        if rate_per_s > high:
            return float("inf")
        return before if high == low else before + (after - before) * (rate_per_s - low) / (high - low)

    def sustained_per_s(self, slo_ms: float) -> float:
        """The highest rate of one replica up to which its p99 stays within the objective.

        Raises:
            ConfigError: not even the lowest measured rate keeps it.
        """
        rate, p99_ms = self.points[0]
        if p99_ms > slo_ms:
            raise ConfigError(
                f"slo_ms: {slo_ms:g} is kept at no measured rate (p99 {p99_ms:g} ms at {rate:g}/s); "
                f"allow more, or measure at lower rates"
            )
        for (low, before), (high, after) in pairwise(self.points):
            if after > slo_ms:
                return low + (high - low) * (slo_ms - before) / (after - before)
            rate = high
        return rate
