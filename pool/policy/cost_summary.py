"""The costs of a month as views show them: by workload, model, scene and team, beside what dedicated devices cost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from pool.policy.cost import HOUR_S, CostBook, DeviceCost, Month, WorkloadCost, month_of

NOBODY = "(none)"
"""Where no model or team is stated."""


@dataclass(frozen=True)
class CostLine:
    """One workload, model, scene or team.

    Attributes:
        slice_hours: of whole devices, used and kept; None for a scene, which shares slices with others.
        cost: used and kept. used: the part of it that was used.
        share: of what all devices cost.
        dedicated: what devices of its own would have cost; of workloads only.
    """

    name: str
    cost: float
    share: float
    slice_hours: float | None = None
    used: float | None = None
    dedicated: float | None = None


@dataclass(frozen=True)
class CostSummary:
    """One month; money is in the currency of the profile's prices.

    Attributes:
        month: as 2026-11, UTC. per_hour: what all devices cost an hour now.
        observed_hours, unobserved_hours: of the month, that were charged to somebody, and that nobody saw.
        total: of the observed hours; idle: the part that nobody used or kept.
        expected: of the whole month; based_on_hours: whole hours that its rest is reckoned from.
        dedicated: devices of its own for each workload, for its peak, as long as it lived. saved: by the pool.
    """

    month: str
    per_hour: float
    observed_hours: float
    unobserved_hours: float
    total: float
    idle: float
    so_far: float
    expected: float
    based_on_hours: int
    dedicated: float
    saved: float
    workloads: tuple[CostLine, ...]
    models: tuple[CostLine, ...]
    scenes: tuple[CostLine, ...]
    teams: tuple[CostLine, ...]


def summary_of(book: CostBook, at_s: float, devices: Sequence[DeviceCost]) -> CostSummary:
    """This month; of one that has just begun, with nothing charged yet, all is 0."""
    month = book.month if book.month.name == month_of(at_s) else Month(month_of(at_s))
    told = book.forecast(at_s)
    dedicated = sum(each.dedicated for each in month.workloads.values())
    return CostSummary(
        month=month.name,
        per_hour=sum(each.price_per_hour for each in devices),
        observed_hours=month.observed_s / HOUR_S,
        unobserved_hours=month.unobserved_s / HOUR_S,
        total=month.total,
        idle=month.idle,
        so_far=told.so_far,
        expected=told.expected,
        based_on_hours=told.based_on_hours,
        dedicated=dedicated,
        saved=dedicated - month.total,
        workloads=tuple(_by_cost(_line(name, [each], month) for name, each in month.workloads.items())),
        models=_grouped(month, lambda each: each.model),
        scenes=_scenes(month),
        teams=_grouped(month, lambda each: each.team),
    )


def _grouped(month: Month, key: Callable[[WorkloadCost], str]) -> tuple[CostLine, ...]:
    groups: dict[str, list[WorkloadCost]] = {}
    for each in month.workloads.values():
        groups.setdefault(key(each) or NOBODY, []).append(each)
    return tuple(_by_cost(_line(name, members, month) for name, members in groups.items()))


def _scenes(month: Month) -> tuple[CostLine, ...]:
    costs: dict[str, float] = {}
    for each in month.workloads.values():
        for scene, cost in each.by_scene.items():
            costs[scene or NOBODY] = costs.get(scene or NOBODY, 0.0) + cost
    return tuple(_by_cost(CostLine(name, cost, _share(cost, month)) for name, cost in costs.items()))


def _line(name: str, members: Sequence[WorkloadCost], month: Month) -> CostLine:
    cost = sum(each.cost for each in members)
    return CostLine(
        name=name,
        cost=cost,
        share=_share(cost, month),
        slice_hours=sum(each.used_s + each.reserved_s for each in members) / HOUR_S,
        used=sum(each.used for each in members),
        dedicated=sum(each.dedicated for each in members),
    )


def _share(cost: float, month: Month) -> float:
    return cost / month.total if month.total > 0 else 0.0


def _by_cost(lines: Iterable[CostLine]) -> list[CostLine]:
    return sorted(lines, key=lambda line: (-line.cost, line.name))
