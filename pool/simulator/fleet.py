"""Devices in racks: a shelf says how many, a fleet has each with its place."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, get_args

from pydantic import Field

from configs.branch import Branch
from configs.plan_settings import Tier
from pool.device import Device, Topology

Level = Literal["device", "node", "rack", "zone"]
LEVELS: tuple[Level, ...] = get_args(Level)
MOST_DEVICES = 100_000


class Shelf(Branch):
    """Devices of one kind that stand alike: so many in each node, nodes in each rack, racks in each zone.

    Zones and racks of several shelves with the same number are the same place; nodes are their shelf's own.
    """

    kind: Tier
    name: str = Field(
        default="", pattern=r"^[A-Za-z0-9_.]{0,20}$", description="begins its nodes' names; absent: the kind"
    )
    zones: int = Field(default=1, ge=1, le=1_000)
    racks: int = Field(default=1, ge=1, le=10_000, description="in each zone")
    nodes: int = Field(default=1, ge=1, le=10_000, description="in each rack")
    devices: int = Field(default=1, ge=1, le=1_024, description="in each node")

    @property
    def prefix(self) -> str:
        return self.name or self.kind

    @property
    def count(self) -> int:
        return self.zones * self.racks * self.nodes * self.devices

    def placed(self) -> Iterator[tuple[str, Topology]]:
        """Id and place of every device, such as ``gpu-z0-r1-n2-d3`` on node ``gpu-z0-r1-n2`` of rack ``z0-r1``."""
        for zone in range(self.zones):
            for rack in range(self.racks):
                place = f"z{zone}-r{rack}"
                for node in range(self.nodes):
                    name = f"{self.prefix}-{place}-n{node}"
                    for device in range(self.devices):
                        yield f"{name}-d{device}", Topology(name, place, f"z{zone}")


def device_count(fleet: Sequence[Shelf]) -> int:
    return sum(shelf.count for shelf in fleet)


def sites(topology: Topology, device_id: str) -> Mapping[Level, str]:
    """The names under which a device can be lost, by level."""
    return {"device": device_id, "node": topology.node, "rack": topology.rack, "zone": topology.zone}


def site_names(fleet: Sequence[Shelf]) -> dict[Level, set[str]]:
    names: dict[Level, set[str]] = {level: set() for level in LEVELS}
    for shelf in fleet:
        for device_id, topology in shelf.placed():
            for level, name in sites(topology, device_id).items():
                names[level].add(name)
    return names


def devices_of(fleet: Sequence[Shelf], memory_bytes: Mapping[Tier, int], price: Mapping[Tier, float]) -> list[Device]:
    """Every device, in the order of the shelves.

    Args:
        memory_bytes, price: of one device, and of its hour, by kind.
    """
    return [
        Device(device_id, shelf.kind, memory_bytes[shelf.kind], topology, price_per_hour=price[shelf.kind])
        for shelf in fleet
        for device_id, topology in shelf.placed()
    ]
