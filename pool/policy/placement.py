"""Placement: which device a slice is cut from, and why that one.

First the devices that cannot take it are left out: a kind that its tiers do not name, one that is closed, too
little share or memory free. The others are ordered by, in this order,

    1. whether the SLO is kept, by prediction
    2. distance to the copies of the same workload: not their device, node, rack, zone
    3. the strategy's order of kinds (see `strategies`)
    4. share left in a hole too small for anybody
    5. best fit: the smallest hole is left, so that the largest stay whole
    6. price of the slice, then the id
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import nsmallest
from typing import NamedTuple

from configs.pool_settings import PlacementSettings
from pool.device import CAPACITY_MILLI, Device, DeviceKind
from pool.policy.cost_model import Prediction
from pool.policy.latency import GraphCosts
from pool.policy.strategies import STRATEGIES, Question
from pool.workload import RANK, WorkloadSpec


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


class Score(NamedTuple):
    """Where a device stands among those that fit; the lowest wins.

    Attributes:
        nearness: to the nearest copy; 4 same device, 3 same node, 2 same rack, 1 same zone, 0 apart.
        kind_place: in the strategy's order of kinds, the first is 0.
        wasted_milli: left free, but in a hole of use to nobody.
        left_milli: left free.
        left_part: the same of its memory, 0-1.
        price: of the slice, an hour.
    """

    misses_slo: bool
    nearness: int
    kind_place: int
    wasted_milli: int
    left_milli: int
    left_part: float
    price: float
    device_id: str


@dataclass(frozen=True)
class PlacementDecision:
    """One lease placed, or not.

    Attributes:
        device_id: None when no device can take it now.
        scores: of the best devices, best first; at most `SHOWN`.
    """

    device_id: str | None
    reason: str
    scores: tuple[Score, ...] = ()


SHOWN = 3


def place(
    spec: WorkloadSpec,
    rooms: Collection[DeviceRoom],
    predictions: Mapping[DeviceKind, Prediction],
    settings: PlacementSettings,
    costs: GraphCosts | None = None,
    peers: Iterable[Device] | None = None,
    avoid: Collection[str] = (),
    prices: Mapping[DeviceKind, float] | None = None,
) -> PlacementDecision:
    """Choose a device for one lease of ``min_milli`` and ``memory_bytes``.

    Args:
        peers: devices that hold copies of the workload; None finds them among the tenants.
        avoid: ids of devices that must not be chosen.
        prices: as `lowest_prices` finds them; None finds them here.
    """
    prices = lowest_prices(rooms) if prices is None else prices
    kinds, why = STRATEGIES[settings.strategy](Question(spec, predictions, costs, prices, settings))
    fitting = [room for room in rooms if can_take(room, spec)]
    if avoid:
        fitting = [room for room in fitting if room.device.id not in avoid]
    if not fitting:
        return PlacementDecision(None, _refusal(spec, rooms, avoid))
    if peers is None:
        peers = [room.device for room in rooms if spec.name in room.tenants]
    crowd = _Crowd(peers)
    places: dict[DeviceKind, int] = {kind: place for place, kind in enumerate(kinds)}
    scores = _scores(spec, fitting, predictions, crowd, places, settings.usable_milli)
    best = [Score(*fields) for fields in nsmallest(SHOWN, scores)]
    return PlacementDecision(best[0].device_id, _praise(best[0], why), tuple(best))


def place_all(
    specs: Sequence[WorkloadSpec],
    rooms: Collection[DeviceRoom],
    predictions: Mapping[str, Mapping[DeviceKind, Prediction]],
    settings: PlacementSettings,
    costs: Mapping[str, GraphCosts] | None = None,
) -> list[list[PlacementDecision]]:
    """Place every replica of several workloads on what is free, guaranteed work first, larger slices before smaller.

    Returns one list for each workload in the order given, with a decision for each of its replicas.
    """
    free = {room.device.id: room for room in rooms}
    decisions: list[list[PlacementDecision]] = [[] for _ in specs]
    order = sorted(range(len(specs)), key=lambda n: (RANK[specs[n].rank], -specs[n].min_milli, specs[n].name, n))
    for number in order:
        spec = specs[number]
        for _ in range(spec.replicas):
            about = predictions.get(spec.name, {})
            decision = place(spec, free.values(), about, settings, (costs or {}).get(spec.name))
            decisions[number].append(decision)
            if decision.device_id is not None:
                room = free[decision.device_id]
                free[decision.device_id] = room.with_lease(spec.name, spec.min_milli, spec.memory_bytes)
    return decisions


def can_take(room: DeviceRoom, spec: WorkloadSpec) -> bool:
    return (
        room.free_milli >= spec.min_milli
        and room.open
        and room.free_bytes >= spec.memory_bytes
        and room.device.kind in spec.tier
    )


def lowest_prices(rooms: Iterable[DeviceRoom]) -> dict[DeviceKind, float]:
    """An hour of a whole device, by kind."""
    prices: dict[DeviceKind, float] = {}
    for room in rooms:
        price = room.device.price_per_hour
        prices[room.device.kind] = min(price, prices.get(room.device.kind, price))
    return prices


class _Crowd:
    """Where the copies of a workload stand. An unnamed rack or zone is nobody's."""

    def __init__(self, peers: Iterable[Device]):
        peers = list(peers)
        self.devices = {device.id for device in peers}
        self.nodes = {device.topology.node for device in peers}
        self.racks = {(device.topology.zone, device.topology.rack) for device in peers if device.topology.rack}
        self.zones = {device.topology.zone for device in peers if device.topology.zone}

    def nearness(self, device: Device) -> int:
        if device.id in self.devices:
            return 4
        if device.topology.node in self.nodes:
            return 3
        if (device.topology.zone, device.topology.rack) in self.racks:
            return 2
        return int(device.topology.zone in self.zones)


def _scores(
    spec: WorkloadSpec,
    rooms: Iterable[DeviceRoom],
    predictions: Mapping[DeviceKind, Prediction],
    crowd: _Crowd,
    places: Mapping[DeviceKind, int],
    usable_milli: int,
) -> list[tuple[bool, int, int, int, int, float, float, str]]:
    """The fields of `Score` for every room. One loop and plain tuples, as thousands of rooms are looked at."""
    milli, memory_bytes = spec.min_milli, spec.memory_bytes
    needed = {kind: each.share_milli for kind, each in predictions.items()} if spec.slo_ms is not None else {}
    usable, slice_part = usable_milli / CAPACITY_MILLI, milli / CAPACITY_MILLI
    scores = []
    for room in rooms:
        device = room.device
        kind, whole = device.kind, device.memory_bytes
        left_milli, left_bytes = room.free_milli - milli, room.free_bytes - memory_bytes
        wasted = left_milli < usable_milli or left_bytes < whole * usable
        scores.append(
            (
                needed.get(kind, 0) > room.free_milli,
                crowd.nearness(device) if crowd.devices else 0,
                places[kind],
                left_milli if wasted else 0,
                left_milli,
                left_bytes / whole if whole else 0.0,
                device.price_per_hour * slice_part,
                device.id,
            )
        )
    return scores


def _praise(best: Score, why: str) -> str:
    near = ("", ", in the zone of a copy", ", in the rack of a copy", ", on the node of a copy", ", beside a copy")
    slo = ", though it will miss its SLO there" if best.misses_slo else ""
    return f"{why}; leaves {best.left_milli} milli free{near[best.nearness]}{slo}"


def _refusal(spec: WorkloadSpec, rooms: Iterable[DeviceRoom], avoid: Collection[str]) -> str:
    found: Counter[str] = Counter()
    most = 0
    for room in rooms:
        if room.device.kind not in spec.tier:
            found["of another kind"] += 1
        elif not room.open or room.device.id in avoid:
            found["closed"] += 1
        elif room.free_milli < spec.min_milli:
            found["without the share"] += 1
            most = max(most, room.free_milli)
        else:
            found["without the memory"] += 1
    devices = ", ".join(f"{count} {what}" for what, count in sorted(found.items())) or "there is none"
    wants = f"{spec.min_milli} milli and {spec.memory_bytes} bytes of {' or '.join(spec.tier)}"
    return f"no device has {wants} free: {devices}; most free share {most} milli"
