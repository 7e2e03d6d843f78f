"""One deployment under demand, by short intervals: replicas that take time to start, a line, and who is late.

A fluid queue: within an interval demand and replicas stand still. Where replicas keep up, the share of late requests
is that of an exponential tail through the measured p99; where they do not, the line grows until a request would wait
too long and is refused. So the same seconds are played to every arm within milliseconds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from pool.policy.autoscale.signals import ServiceCurve, Signals

LONGEST_WAIT_S = 0.25
"""In the line; who would wait longer is refused."""
LATE_ALLOWED = 0.01
"""Of an interval's requests, as the objective is one for the p99; those beyond it violate it."""
P99_OVER_MEAN = math.log(100)
"""Of an exponential distribution: that of the waits behind the time that a request takes alone."""


@dataclass(frozen=True)
class Deployment:
    """What is scaled."""

    curve: ServiceCurve
    slo_ms: float
    most: int

    @property
    def each_per_s(self) -> float:
        return self.curve.sustained_per_s(self.slo_ms)

    @property
    def most_per_s(self) -> float:
        """That one replica answers at all."""
        return self.curve.points[-1][0]


@dataclass(frozen=True)
class Seen:
    """What an arm is told: the signals of every autoscaler, and the requests under way, by which Serve and KPA go."""

    signals: Signals
    ongoing: float


class Arm(Protocol):
    """Says how many replicas there should be."""

    def decide(self, seen: Seen) -> int: ...


@dataclass(frozen=True)
class Played:
    """One arm over one stretch of demand.

    Attributes:
        arrived, violations: requests; late and refused ones violate the objective as far as they are more of their
            interval than `LATE_ALLOWED`.
        replicas: that ran or started, by interval, [N] int64.
        actions: changes of their number.
    """

    arrived: float
    violations: float
    replicas: np.ndarray
    actions: int
    interval_s: float

    @property
    def hours(self) -> float:
        return float(self.replicas.sum()) * self.interval_s / 3_600

    @property
    def actions_per_hour(self) -> float:
        return self.actions / (len(self.replicas) * self.interval_s / 3_600)

    def beyond(self, needed: np.ndarray) -> float:
        """Slice-hours above what was needed, [N]."""
        return float(np.maximum(self.replicas - needed, 0).sum()) * self.interval_s / 3_600

    def short(self, needed: np.ndarray) -> float:
        """Slice-hours below it."""
        return float(np.maximum(needed - self.replicas, 0).sum()) * self.interval_s / 3_600


def play(
    arm: Arm, deployment: Deployment, start_s: float, interval_s: float, arrived: np.ndarray, replicas: int
) -> Played:
    """Let an arm decide after every interval.

    Args:
        start_s: of the first interval, seconds since 1970.
        arrived: requests by interval, [N].
        replicas: that run at the beginning.
    """
    running, starting, line = replicas, [], 0.0
    violations, actions, counts = 0.0, 0, np.zeros(len(arrived), np.int64)
    for place, count in enumerate(arrived.tolist()):
        begin_s = start_s + place * interval_s
        ready = sum(at_s <= begin_s for at_s in starting)
        running, starting = running + ready, starting[ready:]
        counts[place] = running + len(starting)
        late, line, ongoing = answer(deployment, running, count, line, interval_s)
        violations += max(0.0, late - LATE_ALLOWED * count)
        end_s = begin_s + interval_s
        busy = min(1.0, count / (running * deployment.most_per_s * interval_s))
        signals = Signals(end_s, interval_s, count, line, busy, running, len(starting), late)
        target = min(deployment.most, max(1, arm.decide(Seen(signals, ongoing))))
        actions += target != running + len(starting)
        running, starting = changed(running, starting, target, end_s + deployment.curve.start_s)
    return Played(float(arrived.sum()), violations, counts, actions, interval_s)


def answer(
    deployment: Deployment, running: int, arrived: float, line: float, interval_s: float
) -> tuple[float, float, float]:
    """Violations of an interval, the line at its end, and the requests under way in it on average."""
    most = running * deployment.most_per_s * interval_s
    slo_s = deployment.slo_ms / 1_000
    if line + arrived <= most:
        p99_ms = deployment.curve.p99_ms(arrived / interval_s / running)
        late = arrived * 0.01 ** (deployment.slo_ms / p99_ms)
        service_s = 1 / deployment.most_per_s
        mean_s = service_s + max(0.0, p99_ms / 1_000 - service_s) / P99_OVER_MEAN
        return late, 0.0, arrived / interval_s * mean_s
    per_s = most / interval_s
    left = min(line + arrived - most, per_s * LONGEST_WAIT_S)
    refused = line + arrived - most - left
    growing_per_s = (line + arrived - most) / interval_s
    in_time = min(1.0, max(0.0, slo_s * per_s - line) / growing_per_s / interval_s)
    late = refused + (1 - in_time) * (arrived - refused)
    return min(arrived, late), left, (line + left) / 2 + running


def changed(running: int, starting: list[float], target: int, ready_s: float) -> tuple[int, list[float]]:
    """Replicas after a decision; those that have not started go first."""
    missing = target - running - len(starting)
    if missing >= 0:
        return running, starting + [ready_s] * missing
    kept = max(0, len(starting) + missing)
    return running + min(0, len(starting) + missing), starting[:kept]


def needed(deployment: Deployment, arrived: np.ndarray, interval_s: float) -> np.ndarray:
    """Replicas that an interval needs, [N] int64, at least 1."""
    need = np.ceil(arrived / interval_s / deployment.each_per_s - 1e-9).astype(np.int64)
    return np.clip(need, 1, deployment.most)


def highest_ahead(values: np.ndarray, steps: int) -> np.ndarray:
    """The highest of each value and the so many after it, [N]."""
    padded = np.append(values, np.repeat(values[-1:], steps))
    return np.lib.stride_tricks.sliding_window_view(padded, steps + 1).max(axis=1)
