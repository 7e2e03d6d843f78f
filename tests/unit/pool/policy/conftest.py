"""A pool in miniature: it keeps a book of its own, applies what the planner decides, and checks every step."""

from __future__ import annotations

from dataclasses import replace

import pytest

from configs.pool_settings import PoolSettings
from pool.device import Device, Topology
from pool.policy.decisions import Grant, Migrate, Park, Preempt, PromoteShadow, Release, Requeue, Resume, SetShares
from pool.policy.observation import (
    DeviceView,
    LeaseView,
    PlannerState,
    PoolObservation,
    SliceMetrics,
    WorkloadView,
)
from pool.policy.planner import tick
from pool.workload import RANK, WorkloadSpec, WorkloadState

GIB = 1 << 30


class World:
    """Devices, workloads and leases as the controller would show them to the planner."""

    def __init__(self, settings: PoolSettings | None = None):
        self.settings = settings or PoolSettings()
        self.devices: dict[str, DeviceView] = {}
        self.workloads: dict[str, WorkloadView] = {}
        self.leases: dict[str, LeaseView] = {}
        self.metrics: dict[str, SliceMetrics] = {}
        self.state = PlannerState()
        self.now_s = 1_000.0
        self.granted = 0

    def device(self, name, kind="cpu", memory=GIB, node=None, health="alive", price=0.0) -> World:
        self.devices[name] = DeviceView(
            Device(name, kind, memory, Topology(node or name), price_per_hour=price), health
        )
        return self

    def workload(self, name, kind="inference", milli=300, phase="queued", age_s=0.0, crashes_s=(), **about) -> World:
        spec = WorkloadSpec(name=name, kind=kind, model="m", min_milli=milli, **about)
        self.workloads[name] = WorkloadView(WorkloadState(spec, phase), self.now_s - age_s, crashes_s)
        return self

    def running(self, name, on, kind="inference", milli=300, **about) -> World:
        """A workload that holds a lease on each of these devices."""
        devices = on if isinstance(on, list | tuple) else [on]
        self.workload(name, kind, milli, "running", replicas=len(devices), **about)
        for device in devices:
            self.lease(name, device)
        return self

    def lease(self, name, device, milli=None, **about) -> str:
        spec = self.spec(name)
        self.granted += 1
        lease = f"1-{self.granted}"
        size = spec.min_milli if milli is None else milli
        self.leases[lease] = LeaseView(lease, name, device, size, spec.memory_bytes, **about)
        self.metrics[lease] = SliceMetrics(size, wants=False)
        return lease

    def spec(self, name) -> WorkloadSpec:
        return self.workloads[name].state.spec

    def set_health(self, device, health) -> None:
        self.devices[device] = replace(self.devices[device], health=health)

    def set_phase(self, name, phase) -> None:
        about = self.workloads[name]
        self.workloads[name] = replace(about, state=replace(about.state, phase=phase))

    def set_metrics(self, name, **changed) -> None:
        for lease in self.leases.values():
            if lease.workload == name:
                self.metrics[lease.id] = replace(self.metrics[lease.id], **changed)

    def observe(self) -> PoolObservation:
        return PoolObservation(
            tuple(self.devices.values()),
            tuple(self.workloads.values()),
            tuple(self.leases.values()),
            dict(self.metrics),
        )

    def decide(self):
        """One tick; nothing is applied but what the planner remembers."""
        decisions, self.state = tick(self.observe(), self.state, self.now_s, self.settings)
        return decisions

    def step(self, seconds=0.0):
        """Let time pass, tick, and apply every decision in its order, checking the book after each."""
        self.now_s += seconds
        decisions = self.decide()
        for decision in decisions:
            assert decision.reason
            self.apply(decision)
        return decisions

    def settle(self, most=4):
        """Apply ticks at one moment until one decides nothing; returns how many decided something."""
        for count in range(most):
            if not self.step():
                return count
        raise AssertionError(f"still deciding after {most} ticks: {self.decide()}")

    def apply(self, made) -> None:
        if isinstance(made, Grant | Resume):
            assert self.spec(made.workload).rank != "guaranteed" or isinstance(made, Grant)
            assert (made.milli, made.memory_bytes) == (
                self.spec(made.workload).min_milli,
                self.spec(made.workload).memory_bytes,
            )
            self.lease(made.workload, made.device)
            self.set_phase(made.workload, "running")
        elif isinstance(made, Release | Requeue | Preempt):
            lease = self._end(made)
            if isinstance(made, Preempt):
                assert RANK[self.spec(lease.workload).rank] > 0, "guaranteed work is never preempted"
                self.set_phase(lease.workload, "preempted")
            elif isinstance(made, Requeue):
                self.set_phase(lease.workload, "queued")
        elif isinstance(made, Migrate):
            lease = self.leases[made.lease]
            assert (lease.device, lease.milli, lease.memory_bytes) == (made.source, made.milli, made.memory_bytes)
            assert made.source != made.device
            self.leases[made.lease] = replace(lease, device=made.device)
        elif isinstance(made, PromoteShadow):
            lease = self.leases[made.lease]
            assert lease.shadow and lease.ready and lease.device == made.device
            size = {"milli": made.milli, "memory_bytes": made.memory_bytes}
            self.leases[made.lease] = replace(lease, shadow=False, **size)
        elif isinstance(made, Park):
            assert not [lease for lease in self.leases.values() if lease.workload == made.workload]
            self.set_phase(made.workload, "parked")
        else:
            assert isinstance(made, SetShares)
            self._weigh(made)
        self.check(made)

    def check(self, made=None) -> None:
        """No live device is promised twice, none that is closed gets anything new."""
        for name, view in self.devices.items():
            held = [lease for lease in self.leases.values() if lease.device == name]
            if view.health != "dead":
                assert sum(lease.milli for lease in held) <= 1000, (made, held)
                assert sum(lease.memory_bytes for lease in held) <= view.device.memory_bytes, (made, held)
        if isinstance(made, Grant | Resume | Migrate | PromoteShadow):
            view = self.devices[made.device]
            assert view.health == "alive"
            assert view.device.kind in self.spec(made.workload).tier

    def on(self, device) -> list[str]:
        return sorted(lease.workload for lease in self.leases.values() if lease.device == device)

    def phase(self, name) -> str:
        return self.workloads[name].state.phase

    def _end(self, made) -> LeaseView:
        lease = self.leases.pop(made.lease)
        self.metrics.pop(made.lease)
        assert (lease.workload, lease.device) == (made.workload, made.device)
        return lease

    def _weigh(self, made: SetShares) -> None:
        held = {lease.id: lease for lease in self.leases.values() if lease.device == made.device}
        weights = dict(made.weights)
        assert sum(weights.values()) <= 1000
        for lease, weight in weights.items():
            assert weight >= held[lease].milli
            self.metrics[lease] = replace(self.metrics[lease], weight_milli=weight)


@pytest.fixture(scope="session")
def world():
    """Makes a new pool; with settings, or with the defaults."""
    return World
