"""A ground without Ray: nodes, agents and hosts that are only remembered, and clocks that a test turns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from configs.pool_settings import PoolSettings
from pool.gate.readings import GateReading
from pool.runtime.applying import Places
from pool.runtime.controller import Clocks, PoolController
from pool.runtime.messages import (
    Cut,
    Factory,
    GateOrder,
    HostEnd,
    HostOrder,
    HostStatus,
    NodeFound,
    NodeReading,
    Order,
    Polled,
    RayNode,
    Site,
    Survivors,
    Verb,
)
from pool.runtime.state import Fenced
from pool.work import Progress
from pool.workload import WorkloadSpec

GIB = 1 << 30


@dataclass
class FakeGround:
    """Two cores on one node, unless a test says otherwise. Hosts do as they are told when a test lets them."""

    node_list: list[RayNode] = field(default_factory=lambda: [RayNode("n1", "head", True, True, {})])
    found: dict[str, NodeFound] = field(default_factory=lambda: {"n1": NodeFound((0, 1), 4 * GIB, (), 0)})
    epoch: int = 0
    hosts: dict[str, HostStatus] = field(default_factory=dict)
    orders: dict[str, HostOrder] = field(default_factory=dict)
    told: list[tuple[str, str]] = field(default_factory=list)
    killed: list[str] = field(default_factory=list)
    cuts: list[Cut] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    silent: set[str] = field(default_factory=set)
    silent_nodes: set[str] = field(default_factory=set)
    readings: dict[str, tuple[GateReading, ...]] = field(default_factory=dict)
    opened: dict[str, tuple[str, ...]] = field(default_factory=dict)

    def nodes(self) -> tuple[RayNode, ...]:
        return tuple(self.node_list)

    def discover(self, node_ids: Sequence[str], gates: Path, wait_s: float) -> Mapping[str, NodeFound]:
        found = {node: self.found[node] for node in node_ids if node in self.found}
        return {node: replace(each, epoch=self.epoch) for node, each in found.items()}

    def open_gates(self, orders: Mapping[str, GateOrder], wait_s: float) -> None:
        for node, order in orders.items():
            self._obey(order.epoch)
            self.opened[node] = tuple(device.id for device in order.devices)

    def survivors(self, wait_s: float) -> Survivors:
        statuses = tuple(each for key, each in self.hosts.items() if key not in self.silent)
        return Survivors(statuses, tuple(sorted(self.silent & self.hosts.keys())))

    def adopt(self, epoch: int, wait_s: float) -> Survivors:
        self._obey(epoch)
        self.hosts = {
            key: replace(each, epoch=epoch, lease=replace(each.lease, epoch=epoch)) for key, each in self.hosts.items()
        }
        return self.survivors(wait_s)

    def start(self, order: HostOrder, site: Site) -> None:
        assert order.lease.id not in self.hosts
        assert site.device == order.device
        self.orders[order.lease.id] = order
        self.hosts[order.lease.id] = HostStatus(order.lease, order.spec, order.epoch, 1, "starting")

    def tell(self, lease_id: str, verb: Verb, order: Order) -> None:
        self.told.append((lease_id, verb))

    def kill(self, lease_id: str) -> None:
        self.killed.append(lease_id)
        self.hosts.pop(lease_id, None)

    def cut(self, node_id: str, cut: Cut) -> None:
        self.cuts.append(cut)

    def poll(self, wait_s: float) -> Polled:
        lost, self.lost = self.lost, {}
        for lease_id in lost:
            self.hosts.pop(lease_id, None)
        alive = {node.id for node in self.node_list if node.is_alive} - self.silent_nodes
        gates = {node: self.readings.get(node, self._idle(node)) for node in self.opened if node in alive}
        readings = {node: NodeReading(self.epoch, each) for node, each in gates.items()}
        statuses = tuple(each for key, each in self.hosts.items() if key not in self.silent)
        return Polled(statuses, lost, readings)

    # --- what a test does

    def runs(self, lease_id: str, done: int = 1, total: int = 10) -> None:
        self.hosts[lease_id] = replace(self.hosts[lease_id], phase="running", progress=Progress(done, total))

    def ends(self, lease_id: str, end: HostEnd, reason: str = "", **result: int) -> None:
        self.hosts[lease_id] = replace(self.hosts[lease_id], phase="ended", end=end, reason=reason, result=result)

    def _obey(self, epoch: int) -> None:
        if epoch < self.epoch:
            raise Fenced(f"epoch {epoch} is over")
        self.epoch = epoch

    def _idle(self, node: str) -> tuple[GateReading, ...]:
        return tuple(GateReading(device, 1, 1, ()) for device in self.opened[node])


@dataclass
class Clock:
    now_s: float = 1_000.0

    def monotonic(self) -> float:
        return self.now_s

    def wall(self) -> float:
        return self.now_s + 1_000_000.0


DEVICES = [
    {"id": "gpu-0", "kind": "gpu", "emulated": True, "cores": [0], "memory_bytes": GIB},
    {"id": "gpu-1", "kind": "gpu", "emulated": True, "cores": [1], "memory_bytes": GIB},
]


@pytest.fixture
def settings() -> PoolSettings:
    return PoolSettings.model_validate({"devices": DEVICES, "breaker": {"crashes": 3}})


@pytest.fixture
def ground() -> FakeGround:
    return FakeGround()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@dataclass
class Run:
    """A controller with its ground and clock."""

    controller: PoolController
    ground: FakeGround
    clock: Clock
    home: Path

    def tick(self, times: int = 1, every_s: float = 0.25) -> None:
        for _ in range(times):
            self.clock.now_s += every_s
            self.controller.tick()

    def submit(self, name: str, **more) -> None:
        self.controller.submit(spec(name, **more))

    def started(self, name: str, **more) -> str:
        """Submit it, let it run, and return its lease."""
        self.submit(name, **more)
        self.tick()
        lease = self.lease(name)
        self.ground.runs(lease)
        self.tick()
        assert self.phase(name) == "running"
        return lease

    def lease(self, name: str) -> str:
        [lease] = [lease for lease, workload in self.book().items() if workload == name]
        return lease

    def book(self) -> dict[str, str]:
        return {each.lease: each.workload for device in self.controller.report().devices for each in device.slices}

    def phase(self, name: str) -> str:
        return self.controller.workload(name).phase


def spec(name: str, **more) -> WorkloadSpec:
    declared = {"name": name, "kind": "finetune", "model": "fine", "tier": ("gpu",), "min_milli": 300, **more}
    return WorkloadSpec.model_validate(declared)


@pytest.fixture
def make(settings, ground, clock, tmp_path):
    """Start a controller; a second one on the same ground takes over."""

    def start(home: Path = tmp_path, announce=lambda roles: None, knowledge=None, **changed) -> Run:
        places = Places(home / "pool", home / "gates", Factory("m:f"), 30.0)
        clocks = Clocks(clock.monotonic, clock.wall)
        changed_settings = settings.model_copy(update=changed)
        controller = PoolController(
            changed_settings, ground, places, knowledge=knowledge, clocks=clocks, announce=announce
        )
        controller.start()
        return Run(controller, ground, clock, home)

    return start


@pytest.fixture
def run(make) -> Run:
    return make()
