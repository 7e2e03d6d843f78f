"""A split and what it is chosen by: the contract between the pool, live or simulated, and whoever allots."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from pool.workload import WorkloadKind


@dataclass(frozen=True)
class Split:
    """What is changed of the planner's own split.

    Attributes:
        paused: kinds of work that have no turns at the gate.
        factors: by which the planner's weights of a kind of work are multiplied.
        rows_part: of a service's largest batch, above 0 and at most 1.
    """

    name: str
    paused: frozenset[WorkloadKind] = frozenset()
    factors: Mapping[WorkloadKind, float] = field(default_factory=dict)
    rows_part: float = 1.0

    def pauses(self, kind: WorkloadKind) -> bool:
        return kind in self.paused

    def factor_of(self, kind: WorkloadKind) -> float:
        return self.factors.get(kind, 1.0)

    def rows_of(self, most: int) -> int:
        """Rows that a batch may have, of a service whose largest has ``most``."""
        return max(1, round(most * self.rows_part))


KEPT = Split("planner")
"""The planner's own split."""


@dataclass(frozen=True)
class SplitSignals:
    """The pool in one interval, all services together.

    Attributes:
        at_s: seconds since 1970 UTC, at its end.
        violations: requests late, shed or lost in it.
        queued: requests that wait now.
        busy: share of the replicas' time that was used, 0..1.
        pressure: p99 over SLO of the service nearest to its own.
        done_s: device time of the units done so far, by kind of work.
        waiting: copies that are not done, by kind of work.
        devices: that there are.
    """

    at_s: float
    interval_s: float
    arrived: float
    violations: float
    queued: float
    busy: float
    pressure: float
    done_s: Mapping[str, float]
    waiting: Mapping[str, int]
    devices: int


class Allocator(Protocol):
    """Decides once an interval; it has a state of its own, and neither clock nor chance but its seed."""

    def decide(self, seen: SplitSignals) -> Split: ...
