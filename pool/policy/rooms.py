"""Rooms of a pool as columns, so that a thousand devices are compared at once and not one after the other."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from pool.device import Device, DeviceKind
from pool.workload import WorkloadSpec

KINDS: tuple[DeviceKind, ...] = get_args(DeviceKind)
CODE = {kind: code for code, kind in enumerate(KINDS)}
UNNAMED = -1

Columns = list[NDArray[Any]]


@dataclass(frozen=True)
class DeviceRoom:
    """A device as placement sees it; immutable, every change makes a new one.

    Attributes:
        tenants: the workload of every lease on it.
        open: takes new leases; one that drains, is suspected or dead does not.
    """

    device: Device
    free_milli: int
    free_bytes: int
    tenants: tuple[str, ...] = ()
    open: bool = True

    def with_lease(self, workload: str, milli: int, memory_bytes: int) -> DeviceRoom:
        free_milli, free_bytes = self.free_milli - milli, self.free_bytes - memory_bytes
        return DeviceRoom(self.device, free_milli, free_bytes, (*self.tenants, workload), self.open)

    def without_lease(self, workload: str, milli: int, memory_bytes: int) -> DeviceRoom:
        place = self.tenants.index(workload)
        tenants = self.tenants[:place] + self.tenants[place + 1 :]
        return DeviceRoom(self.device, self.free_milli + milli, self.free_bytes + memory_bytes, tenants, self.open)


class RoomTable:
    """Rooms in the order of their ids; only what is free on them changes.

    Attributes:
        place: row of a device, by id.
        free_milli, free_bytes, memory_bytes: [N] int64.
        price: of the whole device an hour, [N] float64.
        kind: codes as in `CODE`, [N] int64.
    """

    def __init__(self, rooms: Iterable[DeviceRoom]):
        ordered = sorted(rooms, key=lambda room: room.device.id)
        self.devices = [room.device for room in ordered]
        self.place = {device.id: row for row, device in enumerate(self.devices)}
        self.free_milli = np.array([room.free_milli for room in ordered], np.int64)
        self.free_bytes = np.array([room.free_bytes for room in ordered], np.int64)
        self.memory_bytes = np.array([device.memory_bytes for device in self.devices], np.int64)
        self.price = np.array([device.price_per_hour for device in self.devices], np.float64)
        self.kind = np.array([CODE[device.kind] for device in self.devices], np.int64)
        self.open = np.array([room.open for room in ordered], bool)
        self._of_tier: dict[tuple[DeviceKind, ...], NDArray[np.bool_]] = {}
        self._sites: tuple[_Names, _Names, _Names] | None = None

    def change(self, room: DeviceRoom) -> None:
        """Take in what is free now."""
        row = self.place[room.device.id]
        self.free_milli[row], self.free_bytes[row] = room.free_milli, room.free_bytes

    def of_tier(self, tier: tuple[DeviceKind, ...]) -> NDArray[np.bool_]:
        """Devices of these kinds, [N]."""
        found = self._of_tier.get(tier)
        if found is None:
            found = self._of_tier[tier] = np.isin(self.kind, [CODE[kind] for kind in tier])
        return found

    def able(self, tier: tuple[DeviceKind, ...], avoid: Collection[str] = ()) -> NDArray[np.bool_]:
        """Open devices of these kinds but those to avoid, [N]."""
        able = self.of_tier(tier) & self.open
        able[[self.place[name] for name in avoid if name in self.place]] = False
        return able

    def fitting(self, spec: WorkloadSpec, avoid: Collection[str] = ()) -> NDArray[np.int64]:
        """Rows of the devices that can take one lease of a workload."""
        fits = self.able(spec.tier, avoid)
        fits &= self.free_milli >= spec.min_milli
        fits &= self.free_bytes >= spec.memory_bytes
        return np.flatnonzero(fits)

    def nearness(self, peers: Iterable[Device]) -> NDArray[np.int64]:
        """To the nearest of some devices, [N]: 4 same device, 3 same node, 2 same rack, 1 same zone, 0 apart.

        An unnamed rack or zone is nobody's.
        """
        near = np.zeros(len(self.devices), np.int64)
        peers = list(peers)
        for distance, (site, names) in enumerate(zip((_zone, _rack, _node), self._named(), strict=True), start=1):
            codes = {names.code[key] for key in map(site, peers) if key in names.code}
            if codes:
                near[np.isin(names.of, list(codes))] = distance
        near[[self.place[peer.id] for peer in peers if peer.id in self.place]] = 4
        return near

    def _named(self) -> tuple[_Names, _Names, _Names]:
        """Zones, racks and nodes; made once, when copies are to be kept apart."""
        if self._sites is None:
            self._sites = _Names(self.devices, _zone), _Names(self.devices, _rack), _Names(self.devices, _node)
        return self._sites


class _Names:
    """Names of places as numbers: ``of`` has each device's, [N], and UNNAMED for those without."""

    def __init__(self, devices: Sequence[Device], name_of: Callable[[Device], object]):
        self.code: dict[object, int] = {}
        names = [name_of(device) for device in devices]
        self.of = np.array(
            [UNNAMED if name is None else self.code.setdefault(name, len(self.code)) for name in names], np.int64
        )


def _node(device: Device) -> object:
    return device.topology.node


def _rack(device: Device) -> object:
    return (device.topology.zone, device.topology.rack) if device.topology.rack else None


def _zone(device: Device) -> object:
    return device.topology.zone or None


def first_rows(columns: Columns, count: int) -> list[int]:
    """The rows that come first when they are ordered by one column after the other; of equal ones the first.

    Args:
        columns: all of one length.
        count: of rows wanted; fewer when there are no more.
    """
    found: list[int] = []
    left = np.ones(len(columns[0]), bool)
    while len(found) < count:
        best = np.flatnonzero(left)
        if not len(best):
            break
        for column in columns:
            values = column[best]
            best = best[values == values.min()]
            if len(best) == 1:
                break
        found += best[: count - len(found)].tolist()
        left[best] = False
    return found
