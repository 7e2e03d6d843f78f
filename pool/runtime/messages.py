"""What the pool's actors say to each other: frozen messages only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from pool.device import Device
from pool.gate.readings import GateReading
from pool.lease import Lease
from pool.policy.latency import BatchTime
from pool.work import Progress
from pool.workload import WorkloadSpec


@dataclass(frozen=True)
class Site:
    """A device and where it is.

    Attributes:
        node_id: of its Ray node.
        index: of an accelerator on its node, as its driver counts; None for what is made of cores.
    """

    device: Device
    node_id: str
    index: int | None = None


@dataclass(frozen=True)
class RayNode:
    """A node as Ray sees it; ``resources`` are those it was started with."""

    id: str
    name: str
    is_alive: bool
    is_head: bool
    resources: Mapping[str, float]


@dataclass(frozen=True)
class AcceleratorFound:
    kind: Literal["gpu", "npu"]
    index: int
    memory_bytes: int


@dataclass(frozen=True)
class NodeFound:
    """What an agent finds on its node.

    Attributes:
        cores: that its processes may use.
        epoch: the newest that a gate of this node has seen; 0 when there is none.
    """

    cores: tuple[int, ...]
    memory_bytes: int
    accelerators: tuple[AcceleratorFound, ...]
    epoch: int


@dataclass(frozen=True)
class GateOrder:
    """Open the gates of a node's devices under an epoch; devices of earlier orders stay."""

    epoch: int
    folder: Path
    devices: tuple[Device, ...]


@dataclass(frozen=True)
class Cut:
    """New weights of one device's gate, by workload."""

    epoch: int
    device: str
    weights: Mapping[str, int]


@dataclass(frozen=True)
class Factory:
    """How a work is made: ``module:function``, called with (spec, argument, folder).

    Workloads are declared, never sent as code; the function and its argument are the controller's.
    """

    path: str
    argument: Any = None


@dataclass(frozen=True)
class HostOrder:
    """Run one copy of a workload.

    Attributes:
        folder: of the workload; its checkpoints lie below.
        index: of the accelerator, None for cores.
        checkpoint_s: seconds between two checkpoints.
    """

    epoch: int
    lease: Lease
    spec: WorkloadSpec
    device: Device
    index: int | None
    gate_folder: Path
    folder: Path
    factory: Factory
    checkpoint_s: float


@dataclass(frozen=True)
class Order:
    """Something a controller tells a host. ``reason``: for people."""

    epoch: int
    reason: str = ""


Verb = Literal["preempt", "warn", "stop"]
"""preempt: checkpoint, then leave the device. warn: checkpoint and go on. stop: leave it as it is."""

HostPhase = Literal["starting", "running", "ended"]
HostEnd = Literal["succeeded", "preempted", "stopped", "failed", "crashed"]
"""failed: what was declared cannot be done. crashed: anything else that was raised; it may be tried again."""


@dataclass(frozen=True)
class HostStatus:
    """One running copy of a workload; its lease is held until ``phase`` is ended.

    Attributes:
        pid: of its process.
        epoch: the newest it has heard of.
        end: how it ended; None while it runs.
        stands: its work is done, and it stays as it is; its lease holds memory alone then.
        checkpointed_s: seconds since its last checkpoint, None before the first.
        resumed: it goes on from a checkpoint.
    """

    lease: Lease
    spec: WorkloadSpec
    epoch: int
    pid: int
    phase: HostPhase
    end: HostEnd | None = None
    reason: str = ""
    progress: Progress | None = None
    checkpointed_s: float | None = None
    resumed: bool = False
    result: Mapping[str, Any] = field(default_factory=dict)
    stands: bool = False


@dataclass(frozen=True)
class Survivors:
    """What ran before a controller started.

    Attributes:
        statuses: of the hosts that answered.
        silent: lease ids of those that exist and did not answer in time.
    """

    statuses: tuple[HostStatus, ...] = ()
    silent: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeReading:
    """What an agent says of its gates, and the newest epoch it has heard of."""

    epoch: int
    gates: tuple[GateReading, ...]


@dataclass(frozen=True)
class Polled:
    """What became known since the last poll.

    Attributes:
        lost: lease ids of hosts whose process is gone, with Ray's words for it.
        readings: of the nodes whose agents answered, by node.
        fenced: why an actor refused an order; None when none did.
    """

    statuses: tuple[HostStatus, ...] = ()
    lost: Mapping[str, str] = field(default_factory=dict)
    readings: Mapping[str, NodeReading] = field(default_factory=dict)
    fenced: str | None = None

    @property
    def epoch(self) -> int:
        """The newest that any of those who answered has heard of; 0 when none did."""
        epochs = (each.epoch for each in (*self.statuses, *self.readings.values()))
        return max(epochs, default=0)


@dataclass(frozen=True)
class Claim:
    """A serving replica asks for a slice on its node, or says that it still has one.

    Attributes:
        holder: names the replica as long as it lives.
        lease: what it holds; None when it asks for the first time.
        shadow: its role, as it was told last: it stands by.
        copies: of its workload that are to serve; those beyond stand by. 0: all serve.
        replica: by which the ingress knows it.
        pid: of its process, on its node; 0 when it does not say.
        p99_ms, queue: of what it serves, lately.
        batches: what its batches took lately, by their rows; empty where its models run elsewhere.
        scenes: requests that it answered since it started, by scene.
    """

    holder: str
    workload: str
    node_id: str
    tier: str
    core_milli: int
    memory_bytes: int = 0
    slo_ms: float | None = None
    version: str | None = None
    lease: Lease | None = None
    p99_ms: float | None = None
    queue: int = 0
    batches: tuple[BatchTime, ...] = ()
    shadow: bool = False
    copies: int = 0
    replica: str = ""
    pid: int = 0
    scenes: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Claimed:
    """The slice of a serving replica; it joins the gate of that device as guaranteed.

    Attributes:
        shadow: it stands by, and is given no calls until it is promoted.
    """

    lease: Lease
    device: Device
    gate_folder: Path
    renew_s: float
    shadow: bool = False
