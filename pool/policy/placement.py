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

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from configs.pool_settings import PlacementSettings
from pool.device import CAPACITY_MILLI, Device, DeviceKind
from pool.policy.cost_model import Prediction
from pool.policy.latency import GraphCosts
from pool.policy.rooms import KINDS, Columns, DeviceRoom, RoomTable, first_rows
from pool.policy.strategies import STRATEGIES, Question
from pool.workload import RANK, WorkloadSpec


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
    table: RoomTable | None = None,
    shown: int = SHOWN,
) -> PlacementDecision:
    """Choose a device for one lease of ``min_milli`` and ``memory_bytes``.

    Args:
        peers: devices that hold copies of the workload; None finds them among the tenants.
        avoid: ids of devices that must not be chosen.
        prices: as `lowest_prices` finds them; None finds them here.
        table: of the same rooms; None makes it here, which takes longer than everything else.
        shown: scores wanted in the answer.
    """
    prices = lowest_prices(rooms) if prices is None else prices
    kinds, why = STRATEGIES[settings.strategy](Question(spec, predictions, costs, prices, settings))
    table = RoomTable(rooms) if table is None else table
    fitting = table.fitting(spec, avoid)
    if not len(fitting):
        return PlacementDecision(None, _refusal(spec, table, avoid))
    if peers is None:
        peers = [room.device for room in rooms if spec.name in room.tenants]
    places: dict[DeviceKind, int] = {kind: place for place, kind in enumerate(kinds)}
    columns = _columns(spec, table, fitting, predictions, list(peers), places, settings.usable_milli)
    best = [_score(columns, row, table.devices[fitting[row]]) for row in first_rows(_in_one(columns), shown)]
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
    free, table = {room.device.id: room for room in rooms}, RoomTable(rooms)
    decisions: list[list[PlacementDecision]] = [[] for _ in specs]
    order = sorted(range(len(specs)), key=lambda n: (RANK[specs[n].rank], -specs[n].min_milli, specs[n].name, n))
    for number in order:
        spec = specs[number]
        for _ in range(spec.replicas):
            about = predictions.get(spec.name, {})
            decision = place(spec, free.values(), about, settings, (costs or {}).get(spec.name), table=table)
            decisions[number].append(decision)
            if decision.device_id is not None:
                room = free[decision.device_id].with_lease(spec.name, spec.min_milli, spec.memory_bytes)
                free[decision.device_id] = room
                table.change(room)
    return decisions


def lowest_prices(rooms: Iterable[DeviceRoom]) -> dict[DeviceKind, float]:
    """An hour of a whole device, by kind."""
    prices: dict[DeviceKind, float] = {}
    for room in rooms:
        price = room.device.price_per_hour
        prices[room.device.kind] = min(price, prices.get(room.device.kind, price))
    return prices


def _columns(
    spec: WorkloadSpec,
    table: RoomTable,
    rows: NDArray[np.int64],
    predictions: Mapping[DeviceKind, Prediction],
    peers: Collection[Device],
    places: Mapping[DeviceKind, int],
    usable_milli: int,
) -> Columns:
    """The fields of `Score` but the id, a column each, for these rows of a table."""
    kind, whole = table.kind[rows], table.memory_bytes[rows]
    left_milli, left_bytes = table.free_milli[rows] - spec.min_milli, table.free_bytes[rows] - spec.memory_bytes
    wasted = (left_milli < usable_milli) | (left_bytes < whole * (usable_milli / CAPACITY_MILLI))
    needed = np.array([predictions[each].share_milli if each in predictions else 0 for each in KINDS])
    nothing = np.zeros(len(rows), np.int64)
    return [
        needed[kind] > table.free_milli[rows] if predictions and spec.slo_ms is not None else nothing,
        table.nearness(peers)[rows] if peers else nothing,
        np.array([places.get(each, len(KINDS)) for each in KINDS])[kind],
        np.where(wasted, left_milli, 0),
        left_milli,
        np.divide(left_bytes, whole, out=np.zeros(len(rows)), where=whole > 0),
        table.price[rows] * (spec.min_milli / CAPACITY_MILLI),
    ]


def _in_one(columns: Columns) -> Columns:
    """The columns of whole numbers as one that orders alike: each digit is one of them. It is compared in one go."""
    misses_slo, nearness, kind_place, wasted_milli, left_milli, *others = columns
    digits = (misses_slo * 5 + nearness) * (len(KINDS) + 1) + kind_place
    return [(digits * (CAPACITY_MILLI + 1) + wasted_milli) * (CAPACITY_MILLI + 1) + left_milli, *others]


def _score(columns: Columns, row: int, device: Device) -> Score:
    misses_slo, nearness, kind_place, wasted, left_milli, left_part, price = (column[row].item() for column in columns)
    return Score(bool(misses_slo), nearness, kind_place, wasted, left_milli, left_part, price, device.id)


def _praise(best: Score, why: str) -> str:
    near = ("", ", in the zone of a copy", ", in the rack of a copy", ", on the node of a copy", ", beside a copy")
    slo = ", though it will miss its SLO there" if best.misses_slo else ""
    return f"{why}; leaves {best.left_milli} milli free{near[best.nearness]}{slo}"


def _refusal(spec: WorkloadSpec, table: RoomTable, avoid: Collection[str]) -> str:
    of_tier, able = table.of_tier(spec.tier), table.able(spec.tier, avoid)
    too_little = able & (table.free_milli < spec.min_milli)
    found = {
        "closed": of_tier & ~able,
        "of another kind": ~of_tier,
        "without the memory": able & ~too_little,
        "without the share": too_little,
    }
    counts = {what: int(np.count_nonzero(rooms)) for what, rooms in found.items()}
    devices = ", ".join(f"{count} {what}" for what, count in counts.items() if count) or "there is none"
    most = table.free_milli[too_little].max() if counts["without the share"] else 0
    wants = f"{spec.min_milli} milli and {spec.memory_bytes} bytes of {' or '.join(spec.tier)}"
    return f"no device has {wants} free: {devices}; most free share {most} milli"
