"""What the planner sees and what it remembers: frozen messages only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from pool.device import Device, DeviceKind
from pool.policy.cost_model import Prediction
from pool.policy.latency import GraphCosts
from pool.policy.shares import DeviceShares
from pool.workload import WorkloadState

DeviceHealth = Literal["alive", "suspect", "draining", "dead"]
"""``suspect``: gets nothing new, keeps what it has. ``draining``: is emptied. ``dead``: its leases are lost."""


@dataclass(frozen=True)
class DeviceView:
    device: Device
    health: DeviceHealth = "alive"


@dataclass(frozen=True)
class WorkloadView:
    """A workload and what is known of it.

    Attributes:
        queued_s: since when it waits or waited first; older ones come first. Monotonic, as all times here.
        crashes_s: when it crashed; old ones may be left out.
        predictions: by kind of device, as far as there are any.
        costs: by its graph, if that was counted.
        served: its copies are started by somebody else; what they cannot have whole, they have in part.
    """

    state: WorkloadState
    queued_s: float = 0.0
    crashes_s: tuple[float, ...] = ()
    predictions: Mapping[DeviceKind, Prediction] = field(default_factory=dict)
    costs: GraphCosts | None = None
    served: bool = False

    @property
    def name(self) -> str:
        return self.state.spec.name


@dataclass(frozen=True)
class LeaseView:
    """A lease as the ledger holds it.

    Attributes:
        milli: 0 for a warm copy that holds memory only.
        shadow: a copy that serves nothing until it is promoted; of guaranteed work only.
        ready: it is warm and can serve.
        since_s: when it was granted, or changed its role.
    """

    id: str
    workload: str
    device: str
    milli: int
    memory_bytes: int
    shadow: bool = False
    ready: bool = True
    since_s: float = 0.0


@dataclass(frozen=True)
class SliceMetrics:
    """A lease as the gate and the meters show it; see `shares.SliceView`."""

    weight_milli: int
    metered_milli: int = 0
    wants: bool = True
    p99_ms: float | None = None


@dataclass(frozen=True)
class PoolObservation:
    """The pool at one moment. ``metrics``: by lease; a lease without any has its minimum as weight."""

    devices: tuple[DeviceView, ...] = ()
    workloads: tuple[WorkloadView, ...] = ()
    leases: tuple[LeaseView, ...] = ()
    metrics: Mapping[str, SliceMetrics] = field(default_factory=dict)


@dataclass(frozen=True)
class Setback:
    """Preemptions of a workload: how many in a row, and when the last was."""

    count: int
    at_s: float


@dataclass(frozen=True)
class PlannerState:
    """What the planner remembers from tick to tick. A new controller starts with an empty one.

    Attributes:
        shares: by device.
        setbacks: by workload.
        moved_s: when load last moved a lease, by lease.
        short_since_s: since when SLOs are missed at full shares, by device.
        waiting: why a workload holds less than it asked for, by workload; for people.
    """

    shares: Mapping[str, DeviceShares] = field(default_factory=dict)
    setbacks: Mapping[str, Setback] = field(default_factory=dict)
    moved_s: Mapping[str, float] = field(default_factory=dict)
    short_since_s: Mapping[str, float] = field(default_factory=dict)
    waiting: Mapping[str, str] = field(default_factory=dict)
