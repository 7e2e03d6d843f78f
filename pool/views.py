"""What the pool tells: frozen, JSON-able pictures of devices, slices, workloads and decisions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

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
class CostReport:
    """What a batch of a workload takes on a whole device of one kind, in p99.

    Attributes:
        predicted_ms: by the graph of its model; None where that is not known.
        measured_ms: of the same model on that kind of device; None where it never ran there.
        emulated: measured on cores that stood in for the device.
        share_milli: smallest slice that keeps the SLO and carries the load; above 1000 when no device does.
        source: what that share, and so the placement, rests on.
    """

    kind: DeviceKind
    batch_rows: int
    predicted_ms: float | None
    measured_ms: float | None
    emulated: bool
    share_milli: int
    source: Literal["profile", "roofline"]


@dataclass(frozen=True)
class WorkloadReport:
    """One workload as it was declared, and where it stands.

    Attributes:
        placement: why its device was chosen; empty before it had one.
        costs: by kind of device, as far as something is known.
    """

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
    placement: str = ""
    costs: tuple[CostReport, ...] = ()


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
        book: the leases in a line, as refusals show it.
    """

    epoch: int
    age_s: float
    devices: tuple[DeviceReport, ...]
    workloads: tuple[WorkloadReport, ...]
    decisions: tuple[DecisionReport, ...]
    book: str = ""
