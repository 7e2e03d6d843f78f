"""What the pool costs, and for whom: slice-seconds at the price of their device.

A device costs its price whether it is used or not. Each moment of it is paid in this order: by those who used it, by
what they metered; of the rest by those who kept a slice and did not use it; what is left is idle. So what inference
reserved and lent to training is paid by training, and the parts always add up to the price.

Pure: no clock and no I/O; the caller says when it is and how long it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from pool.device import CAPACITY_MILLI

HOUR_S = 3_600.0
HOURS_KEPT = 35 * 24
"""Of hourly totals: five weeks."""
WORKLOADS_KEPT = 1_000
"""In a month; those that ended first are then one entry together."""
OTHERS = "(others)"
WEEK_HOURS = 7 * 24
FORMAT = 1


@dataclass(frozen=True)
class DeviceCost:
    """A device for one interval."""

    id: str
    kind: str
    price_per_hour: float


@dataclass(frozen=True)
class SliceUse:
    """A lease for one interval.

    Attributes:
        leased_milli: that it was sure of. used_milli: metered.
        scenes: requests by scene in the interval, of inference; their shares divide its cost.
    """

    workload: str
    device: str
    kind: str
    model: str
    team: str
    leased_milli: int
    used_milli: int
    scenes: Mapping[str, float] = field(default_factory=dict)


@dataclass
class WorkloadCost:
    """Of one workload in one month.

    Attributes:
        used_s, reserved_s: slice-seconds, 1 being a whole device for a second; reserved are those kept and not used.
        used, reserved: their cost.
        by_scene: cost by scene, of inference.
        live_s: that it had a lease; last_s: when it had one last, seconds since 1970.
        peak_devices: whole devices that its peak would have filled. device_price: the mean it paid, an hour.
    """

    kind: str
    model: str
    team: str
    used_s: float = 0.0
    reserved_s: float = 0.0
    used: float = 0.0
    reserved: float = 0.0
    by_scene: dict[str, float] = field(default_factory=dict)
    live_s: float = 0.0
    last_s: float = 0.0
    peak_devices: int = 0
    device_price: float = 0.0

    @property
    def cost(self) -> float:
        return self.used + self.reserved

    @property
    def dedicated(self) -> float:
        """What devices of its own, enough for its peak as long as it lived, would have cost."""
        return self.peak_devices * self.device_price * self.live_s / HOUR_S


@dataclass
class Month:
    """One calendar month, UTC.

    Attributes:
        total: of all devices. idle: the part of it that nobody used or kept.
        observed_s: of the month that was charged; unobserved_s: that passed between charges.
    """

    name: str
    workloads: dict[str, WorkloadCost] = field(default_factory=dict)
    total: float = 0.0
    idle: float = 0.0
    observed_s: float = 0.0
    unobserved_s: float = 0.0


@dataclass(frozen=True)
class MonthForecast:
    """What the month will have cost in all.

    Attributes:
        so_far: charged, and what passed unobserved at the mean rate of what was charged.
        per_hour: that the rest of the month is reckoned at. based_on_hours: whole hours that it is the mean of.
    """

    so_far: float
    expected: float
    per_hour: float
    based_on_hours: int


class CostBook:
    """Charges intervals, and keeps this month, the one before and the hours of five weeks.

    ``last_s`` is when it was told anything last, seconds since 1970; 0 before it was.
    """

    def __init__(self) -> None:
        self.month = Month("")
        self.before: Month | None = None
        self.hours: dict[int, float] = {}
        self.last_s = 0.0

    def charge(self, at_s: float, seconds: float, devices: Sequence[DeviceCost], slices: Sequence[SliceUse]) -> None:
        """One interval that ends at ``at_s`` (seconds since 1970).

        Slices of devices that are not among ``devices`` are not charged.
        """
        self._turn(at_s)
        self.last_s = at_s
        month, touched = self.month, set()
        month.observed_s += seconds
        for device in devices:
            per_milli = device.price_per_hour * seconds / HOUR_S / CAPACITY_MILLI
            here = [each for each in slices if each.device == device.id]
            used, reserved = divided([each.used_milli for each in here], [each.leased_milli for each in here])
            for each, used_milli, reserved_milli in zip(here, used, reserved, strict=True):
                entry = self._entry(each, at_s)
                entry.used_s += used_milli * seconds / CAPACITY_MILLI
                entry.reserved_s += reserved_milli * seconds / CAPACITY_MILLI
                entry.used += used_milli * per_milli
                entry.reserved += reserved_milli * per_milli
                _by_scene(entry, each.scenes, (used_milli + reserved_milli) * per_milli)
                touched.add(each.workload)
            month.total += CAPACITY_MILLI * per_milli
            month.idle += (CAPACITY_MILLI - sum(used) - sum(reserved)) * per_milli
        self._live(at_s, seconds, touched, devices, slices)
        hour = int(at_s // HOUR_S)
        self.hours[hour] = self.hours.get(hour, 0.0) + sum(each.price_per_hour for each in devices) * seconds / HOUR_S
        for old in [each for each in self.hours if each <= hour - HOURS_KEPT]:
            del self.hours[old]

    def passed(self, at_s: float, seconds: float) -> None:
        """So long nobody looked: it cost, and it is not known for whom."""
        self._turn(at_s)
        self.last_s = at_s
        self.month.unobserved_s += seconds

    def forecast(self, at_s: float) -> MonthForecast:
        """The rest of the month at the mean of the last whole hours: of a week where there is one, else of all."""
        this_hour = int(at_s // HOUR_S)
        whole = [self.hours[each] for each in sorted(self.hours) if each < this_hour][-WEEK_HOURS:]
        month = self.month
        rate = month.total / month.observed_s * HOUR_S if month.observed_s > 0 else 0.0
        per_hour = sum(whole) / len(whole) if whole else rate
        so_far = month.total + rate * month.unobserved_s / HOUR_S
        return MonthForecast(so_far, so_far + per_hour * _left_s(at_s) / HOUR_S, per_hour, len(whole))

    def plain(self) -> dict[str, Any]:
        """All of it as plain data; see `restored`."""
        months = [_plain_month(each) for each in (self.month, self.before) if each is not None]
        return {"format": FORMAT, "months": months, "hours": sorted(self.hours.items()), "last_s": self.last_s}

    @classmethod
    def restored(cls, plain: Mapping[str, Any]) -> CostBook:
        """Raises ValueError for another format."""
        if plain.get("format") != FORMAT:
            raise ValueError(f"costs saved in format {plain.get('format')!r} cannot be read; this is {FORMAT}")
        made = cls()
        months = [_restored_month(each) for each in plain["months"]]
        made.month, made.before = months[0], months[1] if len(months) > 1 else None
        made.last_s = float(plain["last_s"])
        made.hours = {int(hour): float(cost) for hour, cost in plain["hours"]}
        return made

    def _turn(self, at_s: float) -> None:
        """Begin a month; a clock that goes back into the one before stays in the later one."""
        name = month_of(at_s)
        if name > self.month.name:
            self.before, self.month = self.month if self.month.name else None, Month(name)

    def _entry(self, use: SliceUse, at_s: float) -> WorkloadCost:
        found = self.month.workloads.get(use.workload)
        if found is None:
            found = self.month.workloads[use.workload] = WorkloadCost(use.kind, use.model, use.team, last_s=at_s)
            if len(self.month.workloads) > WORKLOADS_KEPT:
                _fold(self.month)
        return found

    def _live(
        self,
        at_s: float,
        seconds: float,
        touched: set[str],
        devices: Sequence[DeviceCost],
        slices: Sequence[SliceUse],
    ) -> None:
        """How long each lived, and the devices that its peak would have filled."""
        prices = {each.id: each.price_per_hour for each in devices}
        for name in touched:
            mine = [each for each in slices if each.workload == name and each.device in prices]
            entry, held = self.month.workloads[name], sum(max(each.leased_milli, each.used_milli) for each in mine)
            price = sum(prices[each.device] for each in mine) / len(mine)
            entry.device_price += (price - entry.device_price) * seconds / max(entry.live_s + seconds, 1e-9)
            entry.live_s, entry.last_s = entry.live_s + seconds, at_s
            entry.peak_devices = max(entry.peak_devices, -(-held // CAPACITY_MILLI))


def divided(used_milli: Sequence[int], leased_milli: Sequence[int]) -> tuple[list[float], list[float]]:
    """What each pays of one device, in thousandths of it: for use, and for what it kept without using it.

    Use beyond the whole device, which metering may show for a moment, is scaled down to it.
    """
    scale = min(1.0, CAPACITY_MILLI / max(1, sum(used_milli)))
    used = [each * scale for each in used_milli]
    kept = [max(0.0, leased - mine) for leased, mine in zip(leased_milli, used, strict=True)]
    left = max(0.0, CAPACITY_MILLI - sum(used))
    share = min(1.0, left / sum(kept)) if sum(kept) > 0 else 0.0
    return used, [each * share for each in kept]


def month_of(at_s: float) -> str:
    """As 2026-11, UTC."""
    return str(_month(at_s))


def _left_s(at_s: float) -> float:
    """Of the month."""
    return float((_month(at_s) + 1).astype("datetime64[s]").astype(np.int64)) - at_s


def _month(at_s: float) -> np.datetime64:
    return np.datetime64(int(at_s), "s").astype("datetime64[M]")


def _by_scene(entry: WorkloadCost, scenes: Mapping[str, float], cost: float) -> None:
    requests = sum(scenes.values())
    for scene, count in scenes.items():
        if requests > 0:
            entry.by_scene[scene] = entry.by_scene.get(scene, 0.0) + cost * count / requests


def _fold(month: Month) -> None:
    """Those that ended first, one in ten, become one entry."""
    oldest = sorted((each for each in month.workloads if each != OTHERS), key=lambda name: month.workloads[name].last_s)
    others = month.workloads.setdefault(OTHERS, WorkloadCost("", "", ""))
    for name in oldest[: WORKLOADS_KEPT // 10]:
        each = month.workloads.pop(name)
        dedicated = others.dedicated + each.dedicated
        others.used_s, others.reserved_s = others.used_s + each.used_s, others.reserved_s + each.reserved_s
        others.used, others.reserved = others.used + each.used, others.reserved + each.reserved
        others.live_s, others.last_s = others.live_s + each.live_s, max(others.last_s, each.last_s)
        others.peak_devices, others.device_price = 1, dedicated * HOUR_S / max(others.live_s, 1e-9)


def _plain_month(month: Month) -> dict[str, Any]:
    return {**vars(month), "workloads": {name: dict(vars(each)) for name, each in month.workloads.items()}}


def _restored_month(plain: Mapping[str, Any]) -> Month:
    workloads = {name: WorkloadCost(**each) for name, each in plain["workloads"].items()}
    return Month(**{**plain, "workloads": workloads})
