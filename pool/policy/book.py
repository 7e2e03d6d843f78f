"""The book of one tick: what is held and free after the decisions taken so far.

It is the planner's scratch pad, made from the observation and thrown away with the tick. Every decision is
entered here as it is taken, so that the next one sees its effect; no device can be promised twice.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from functools import cached_property

from pool.device import CAPACITY_MILLI, DeviceKind
from pool.policy.decisions import Decision
from pool.policy.observation import DeviceView, LeaseView, PoolObservation, WorkloadView
from pool.policy.placement import lowest_prices
from pool.policy.rooms import DeviceRoom, RoomTable
from pool.policy.victims import Clearings, Tenant
from pool.workload import WorkloadSpec

PROVISIONAL = "new-"
"""Ids of leases granted in this tick begin with this; the ledger gives the real ones."""


class Book:
    """Leases, rooms and tenants, and the decisions that led to them.

    Attributes:
        leases: on devices that live, by id.
        lost: on devices that are dead or unknown.
    """

    def __init__(self, seen: PoolObservation):
        self.workloads: dict[str, WorkloadView] = {each.state.spec.name: each for each in seen.workloads}
        self.health = {each.device.id: each.health for each in seen.devices}
        self.decisions: list[Decision] = []
        self.leases: dict[str, LeaseView] = {}
        self.lost: list[LeaseView] = []
        self._live = [each for each in seen.devices if each.health != "dead"]
        self._on: dict[str, dict[str, LeaseView]] = {each.device.id: {} for each in self._live}
        self._held: dict[str, dict[str, LeaseView]] = {}
        self._shadowed: set[str] = set()  # workloads that may have warm copies
        self._granted = 0
        for lease in seen.leases:
            on, held = self._on.get(lease.device), self._held.get(lease.workload)
            if on is None:
                self.lost.append(lease)
                continue
            if held is None:
                held = self._held[lease.workload] = {}
            self.leases[lease.id] = on[lease.id] = held[lease.id] = lease
            if lease.shadow:
                self._shadowed.add(lease.workload)

    @cached_property
    def rooms(self) -> dict[str, DeviceRoom]:
        """By device, without the dead ones. Made when they are first asked for: most ticks place nothing."""
        return {each.device.id: self._room(each) for each in self._live}

    @cached_property
    def table(self) -> RoomTable:
        """The rooms as columns."""
        return RoomTable(self.rooms.values())

    @cached_property
    def tenants(self) -> dict[str, list[Tenant]]:
        """Leases that may give way, by device."""
        found: dict[str, list[Tenant]] = {}
        for device, leases in self._on.items():
            tenants = [self._tenant(lease) for lease in leases.values()]
            found[device] = [each for each in tenants if each is not None]
        return found

    @cached_property
    def clearings(self) -> Clearings:
        """Who would have to give way where."""
        return Clearings(self.rooms, self.tenants)

    @cached_property
    def prices(self) -> dict[DeviceKind, float]:
        """Lowest of an hour of a whole device, by kind."""
        return lowest_prices(self.rooms.values())

    @property
    def has_granted(self) -> bool:
        """Whether there are provisional leases."""
        return self._granted > 0

    def held(self, workload: str) -> list[LeaseView]:
        """Every lease of a workload on a live device, shadows too."""
        return list(self._held.get(workload, {}).values())

    def serving(self, workload: str) -> list[LeaseView]:
        return [lease for lease in self.held(workload) if not lease.shadow]

    def count_serving(self, workload: str) -> int:
        """How many leases `serving` has."""
        return len(self.serving(workload)) if workload in self._shadowed else self.count(workload)

    def count(self, workload: str) -> int:
        """How many leases `held` has."""
        held = self._held.get(workload)
        return len(held) if held else 0

    def on(self, device: str) -> list[LeaseView]:
        return list(self._on[device].values())

    def by_device(self) -> Iterator[tuple[str, Collection[LeaseView]]]:
        """Every device with the leases on it."""
        for device, leases in self._on.items():
            yield device, leases.values()

    def draining(self) -> Iterator[LeaseView]:
        """Leases on devices that are being emptied."""
        for device, leases in self._on.items():
            if self.health[device] == "draining":
                yield from leases.values()

    def grant(self, spec: WorkloadSpec, device: str) -> None:
        self._granted += 1
        self._enter(LeaseView(f"{PROVISIONAL}{self._granted}", spec.name, device, spec.min_milli, spec.memory_bytes))

    def drop(self, lease: LeaseView) -> None:
        room, tenants = self.rooms[lease.device], self.tenants  # made of what was held before the change
        self._change(room.without_lease(lease.workload, lease.milli, lease.memory_bytes))
        del self.leases[lease.id], self._on[lease.device][lease.id], self._held[lease.workload][lease.id]
        tenants[lease.device] = [each for each in tenants[lease.device] if each.lease != lease.id]

    def move(self, lease: LeaseView, device: str) -> None:
        self.drop(lease)
        self._enter(replace(lease, device=device))

    def promote(self, shadow: LeaseView, milli: int, memory_bytes: int) -> None:
        self.drop(shadow)
        self._enter(replace(shadow, milli=milli, memory_bytes=memory_bytes, shadow=False))

    def stand_by(self, lease: LeaseView) -> None:
        self.drop(lease)
        self._enter(replace(lease, milli=0, shadow=True))

    def spec_of(self, lease: LeaseView) -> WorkloadSpec:
        """The workload of a lease, with the lease's own size: it may be of before the workload was changed."""
        spec = self.workloads[lease.workload].state.spec
        if (spec.min_milli, spec.memory_bytes) == (lease.milli, lease.memory_bytes):
            return spec
        size = {"min_milli": max(1, lease.milli), "memory_bytes": lease.memory_bytes, "desired_milli": None}
        return spec.model_copy(update=size)

    def _enter(self, lease: LeaseView) -> None:
        room, tenants = self.rooms[lease.device], self.tenants  # made of what was held before the change
        self._change(room.with_lease(lease.workload, lease.milli, lease.memory_bytes))
        self.leases[lease.id] = lease
        self._on[lease.device][lease.id] = lease
        self._held.setdefault(lease.workload, {})[lease.id] = lease
        if lease.shadow:
            self._shadowed.add(lease.workload)
        tenant = self._tenant(lease)
        if tenant is not None:
            tenants[lease.device].append(tenant)

    def _change(self, room: DeviceRoom) -> None:
        self.table.change(room)
        self.rooms[room.device.id] = room
        self.clearings.change(room.device.id)

    def _room(self, view: DeviceView) -> DeviceRoom:
        device, free_milli, free_bytes, tenants = view.device, CAPACITY_MILLI, view.device.memory_bytes, []
        for lease in self._on[device.id].values():
            free_milli, free_bytes = free_milli - lease.milli, free_bytes - lease.memory_bytes
            tenants.append(lease.workload)
        return DeviceRoom(device, free_milli, free_bytes, tuple(tenants), view.health == "alive")

    def _tenant(self, lease: LeaseView) -> Tenant | None:
        """A lease as one that may give way; None for guaranteed work, and for work that is not known."""
        workload = self.workloads.get(lease.workload)
        if workload is None or workload.state.spec.rank == "guaranteed":
            return None
        return Tenant(lease.id, lease.workload, workload.state.spec.rank, lease.milli, lease.memory_bytes)
