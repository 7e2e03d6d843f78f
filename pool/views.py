"""What the pool tells: frozen, JSON-able pictures of devices, slices, workloads and decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pool.device import DeviceKind
from pool.workload import WorkloadKind, WorkloadPhase, WorkloadPriority


@dataclass(frozen=True)
class SliceReport:
    """One lease, and what its holder really uses.

    Attributes:
        leased_milli: what it is sure of. share_milli: its weight in the device's gate now.
        metered_milli: of the device's time, over the last second.
        headroom: 1 - p99 / SLO of an inference workload, None for others; below 0 the SLO is missed.
        progress: share done of a work that ends, in [0, 1]; a warm-up's is how warm it is.
        steps_per_s: units of a work a second.
        preemptions: times it gave way at the gate since it joined.
        shadow: stands by, warmed, to take over.
    """

    lease: str
    workload: str
    kind: WorkloadKind
    priority: WorkloadPriority
    version: str | None
    leased_milli: int
    share_milli: int
    metered_milli: int
    memory_bytes: int
    queue: int = 0
    headroom: float | None = None
    progress: float | None = None
    steps_per_s: float | None = None
    preemptions: int = 0
    shadow: bool = False


@dataclass(frozen=True)
class DeviceReport:
    """One device with the slices on it; ``label`` says `emulated` where it is."""

    id: str
    kind: DeviceKind
    label: str
    emulated: bool
    node: str
    health: str
    memory_bytes: int
    free_milli: int
    free_bytes: int
    slices: tuple[SliceReport, ...] = ()


@dataclass(frozen=True)
class WorkloadReport:
    """One workload as it was declared, and where it stands."""

    name: str
    kind: WorkloadKind
    priority: WorkloadPriority
    phase: WorkloadPhase
    reason: str
    device: str | None
    restarts: int
    queued_s: float
    spec: Mapping[str, Any]
    progress: float | None = None
    result: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class DecisionReport:
    """What the controller decided, when (seconds since 1970), and why."""

    at_s: float
    what: str
    reason: str


@dataclass(frozen=True)
class PoolReport:
    """The pool at one moment.

    Attributes:
        epoch: of the controller that says so.
        age_s: since its last tick; a large one means that the controller hangs.
    """

    epoch: int
    age_s: float
    devices: tuple[DeviceReport, ...]
    workloads: tuple[WorkloadReport, ...]
    decisions: tuple[DecisionReport, ...]
