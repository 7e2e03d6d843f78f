"""Who is where, as arrays: made anew when a lease comes, goes or gets ready, and read at every interval."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from pool.device import CAPACITY_MILLI, DeviceKind
from pool.simulator.scenario import ServiceSettings
from pool.simulator.world import Copy, Work, World

Places = NDArray[np.int64]


@dataclass
class Group:
    """Replicas of one service that are alike: on one kind of device, beside work with steps of one length.

    Attributes:
        devices: rows in the fleet, [N].
        hold_s: longest step of other work there.
        used: lanes that each used in the last interval, [N].
        p99_ms: of each in the last interval, [N]; NaN where nothing was answered.
    """

    kind: DeviceKind
    hold_s: float
    copies: list[Copy]
    devices: Places
    used: NDArray[np.float64]
    p99_ms: NDArray[np.float64]


@dataclass
class Sharers:
    """Work that is ready to go on, and shares devices by weight.

    Attributes:
        devices: [M]. unit_s: [M] device time of one unit.
        used: share of its device that each had in the last interval, [M].
    """

    copies: list[Copy]
    works: list[Work]
    devices: Places
    unit_s: NDArray[np.float64]
    used: NDArray[np.float64]


@dataclass
class Layout:
    """All of it.

    Attributes:
        lanes: [D]; 0 of a device that is lost.
        groups: by service.
        leased_milli: by service or work, and what those leases cost an hour.
    """

    lanes: NDArray[np.float64]
    groups: dict[str, list[Group]]
    sharers: Sharers
    leased_milli: dict[str, float]
    leased_price: dict[str, float]
    price_per_hour: float


def arrange(world: World, place: dict[str, int], now_s: float) -> Layout:
    """The arrays of a world as it is.

    Args:
        place: row of each device.
    """
    kinds = world.scenario.kinds
    there = [name not in world.down for name in place]
    lanes = np.array([float(kinds[device.kind].lanes) for device in world.devices.values()]) * there
    sharers = _sharers(world, place, now_s)
    hold_s = np.zeros(len(place))
    np.maximum.at(hold_s, sharers.devices, sharers.unit_s)
    groups = {service.name: _groups(world, service, place, hold_s, now_s) for service in world.scenario.services}
    leased, price = _leased(world)
    prices = [device.price_per_hour for device, is_there in zip(world.devices.values(), there, strict=True) if is_there]
    return Layout(lanes, groups, sharers, leased, price, sum(prices))


def _groups(
    world: World, service: ServiceSettings, place: dict[str, int], hold_s: NDArray[np.float64], now_s: float
) -> list[Group]:
    alike: dict[tuple[DeviceKind, float], list[Copy]] = {}
    for copy in world.serving(service.name, now_s):
        device = copy.view.device
        alike.setdefault((world.devices[device].kind, float(hold_s[place[device]])), []).append(copy)
    return [
        Group(kind, hold, copies, _places(copies, place), np.zeros(len(copies)), np.full(len(copies), np.nan))
        for (kind, hold), copies in alike.items()
    ]


def _sharers(world: World, place: dict[str, int], now_s: float) -> Sharers:
    copies, works = [], []
    for copy in world.copies.values():
        work = world.records[copy.view.workload].work
        if work is None or work.paused or work.is_done or not copy.is_ready(now_s) or copy.view.device in world.down:
            continue
        copies.append(copy)
        works.append(work)
    unit_s = np.array([work.settings.unit_ms / 1e3 for work in works])
    return Sharers(copies, works, _places(copies, place), unit_s, np.zeros(len(copies)))


def _leased(world: World) -> tuple[dict[str, float], dict[str, float]]:
    milli: dict[str, float] = {}
    price: dict[str, float] = {}
    for copy in world.copies.values():
        owner = world.records[copy.view.workload].owner.name
        milli[owner] = milli.get(owner, 0.0) + copy.view.milli
        cost = world.devices[copy.view.device].price_per_hour * copy.view.milli / CAPACITY_MILLI
        price[owner] = price.get(owner, 0.0) + cost
    return milli, price


def _places(copies: list[Copy], place: dict[str, int]) -> Places:
    return np.array([place[copy.view.device] for copy in copies], np.int64)
