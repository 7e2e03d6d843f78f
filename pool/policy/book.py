"""The book of one tick: what is held and free after the decisions taken so far.

It is the planner's scratch pad, made from the observation and thrown away with the tick. Every decision is
entered here as it is taken, so that the next one sees its effect; no device can be promised twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from pool.device import CAPACITY_MILLI
from pool.policy.decisions import Decision
from pool.policy.observation import LeaseView, PoolObservation, WorkloadView
from pool.policy.placement import DeviceRoom, lowest_prices
from pool.policy.victims import Tenant
from pool.workload import RANK, WorkloadSpec

PROVISIONAL = "new-"
"""Ids of leases granted in this tick begin with this; the ledger gives the real ones."""


class Book:
    """Leases, rooms and tenants, and the decisions that led to them.

    Attributes:
        leases: on devices that live, by id.
        lost: on devices that are dead or unknown.
        rooms: by device, without the dead ones.
        tenants: leases that may give way, by device.
    """

    def __init__(self, seen: PoolObservation):
        self.workloads: dict[str, WorkloadView] = {each.name: each for each in seen.workloads}
        self.health = {each.device.id: each.health for each in seen.devices}
        self.decisions: list[Decision] = []
        self.leases: dict[str, LeaseView] = {}
        self.lost: list[LeaseView] = []
        self.rooms: dict[str, DeviceRoom] = {
            each.device.id: DeviceRoom(
                each.device, CAPACITY_MILLI, each.device.memory_bytes, open=each.health == "alive"
            )
            for each in seen.devices
            if each.health != "dead"
        }
        self.tenants: dict[str, list[Tenant]] = {device: [] for device in self.rooms}
        self._on: dict[str, dict[str, LeaseView]] = {device: {} for device in self.rooms}
        self._held: dict[str, dict[str, LeaseView]] = {}
        self.prices = lowest_prices(self.rooms.values())
        self._granted = 0
        for lease in seen.leases:
            if lease.device in self.rooms:
                self._enter(lease)
            else:
                self.lost.append(lease)

    def held(self, workload: str) -> list[LeaseView]:
        """Every lease of a workload on a live device, shadows too."""
        return list(self._held.get(workload, {}).values())

    def serving(self, workload: str) -> list[LeaseView]:
        return [lease for lease in self.held(workload) if not lease.shadow]

    def on(self, device: str) -> list[LeaseView]:
        return list(self._on[device].values())

    def draining(self) -> Iterator[LeaseView]:
        """Leases on devices that are being emptied."""
        for device, leases in self._on.items():
            if self.health[device] == "draining":
                yield from leases.values()

    def grant(self, spec: WorkloadSpec, device: str) -> None:
        self._granted += 1
        self._enter(LeaseView(f"{PROVISIONAL}{self._granted}", spec.name, device, spec.min_milli, spec.memory_bytes))

    def drop(self, lease: LeaseView) -> None:
        room = self.rooms[lease.device]
        self.rooms[lease.device] = room.without_lease(lease.workload, lease.milli, lease.memory_bytes)
        del self.leases[lease.id], self._on[lease.device][lease.id], self._held[lease.workload][lease.id]
        self.tenants[lease.device] = [each for each in self.tenants[lease.device] if each.lease != lease.id]

    def move(self, lease: LeaseView, device: str) -> None:
        self.drop(lease)
        self._enter(replace(lease, device=device))

    def promote(self, shadow: LeaseView, milli: int, memory_bytes: int) -> None:
        self.drop(shadow)
        self._enter(replace(shadow, milli=milli, memory_bytes=memory_bytes, shadow=False))

    def spec_of(self, lease: LeaseView) -> WorkloadSpec:
        """The workload of a lease, with the lease's own size: it may be of before the workload was changed."""
        spec = self.workloads[lease.workload].state.spec
        if (spec.min_milli, spec.memory_bytes) == (lease.milli, lease.memory_bytes):
            return spec
        size = {"min_milli": max(1, lease.milli), "memory_bytes": lease.memory_bytes, "desired_milli": None}
        return spec.model_copy(update=size)

    def _enter(self, lease: LeaseView) -> None:
        room = self.rooms[lease.device]
        self.rooms[lease.device] = room.with_lease(lease.workload, lease.milli, lease.memory_bytes)
        self.leases[lease.id] = lease
        self._on[lease.device][lease.id] = lease
        self._held.setdefault(lease.workload, {})[lease.id] = lease
        workload = self.workloads.get(lease.workload)
        if workload is not None and RANK[workload.state.spec.rank] > 0:
            rank = workload.state.spec.rank
            self.tenants[lease.device].append(Tenant(lease.id, lease.workload, rank, lease.milli, lease.memory_bytes))
