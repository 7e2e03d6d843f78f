"""What the allocator is shown of the simulated pool."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pool.policy.learned.split import SplitSignals
from pool.simulator.latencies import quantile_ms
from pool.simulator.scenario import ServiceSettings
from pool.simulator.tallies import Window
from pool.simulator.world import World


@dataclass(frozen=True)
class SeenAt:
    """A service, and what happened to it in an interval."""

    service: ServiceSettings
    window: Window
    running: int


def split_signals(at_s: float, interval_s: float, seen: Mapping[str, SeenAt], world: World) -> SplitSignals:
    """All services in one, as the split is one for all: the one nearest to its objective decides."""
    pressures = [quantile_ms(each.window.counts, 0.99) / each.service.slo_ms for each in seen.values()]
    known = [pressure for pressure in pressures if pressure == pressure]
    arrived = sum(each.window.arrived for each in seen.values())
    up_s = sum(each.window.up_s for each in seen.values())
    units: dict[str, float] = {}
    waiting: dict[str, int] = {}
    for record in world.records.values():
        if record.work is not None:
            kind = record.view.state.spec.kind
            units[kind] = units.get(kind, 0.0) + record.work.done * record.work.settings.unit_ms / 1e3
            waiting[kind] = waiting.get(kind, 0) + (0 if record.work.is_done else 1)
    return SplitSignals(
        at_s=at_s,
        interval_s=interval_s,
        arrived=arrived,
        violations=sum(each.window.violations for each in seen.values()),
        queued=sum(each.window.queued for each in seen.values()),
        busy=sum(each.window.busy_s for each in seen.values()) / up_s if up_s else 0.0,
        pressure=max(known, default=0.0),
        done_s=units,
        waiting=waiting,
        devices=len(world.devices),
    )
