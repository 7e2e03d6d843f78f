"""What fails when: planned outages, and those drawn at random from mean times between failures."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from pool.device import Device
from pool.simulator.fleet import LEVELS, Level, sites
from pool.simulator.scenario import Scenario

HOUR_S = 3_600.0


@dataclass(frozen=True)
class Outage:
    """Devices that are lost together.

    Attributes:
        until_s: when they are repaired; each then takes the start-up time of its kind.
    """

    at_s: float
    until_s: float
    level: Level
    name: str
    devices: tuple[str, ...]


def outages(scenario: Scenario, devices: Iterable[Device], seed: int) -> list[Outage]:
    """All of a scenario, in their order."""
    places: dict[Level, dict[str, list[str]]] = {level: {} for level in LEVELS}
    for device in devices:
        for level, name in sites(device.topology, device.id).items():
            places[level].setdefault(name, []).append(device.id)
    planned = [
        Outage(each.at_s, each.at_s + each.for_s, each.level, each.name, tuple(places[each.level][each.name]))
        for each in scenario.failures.planned
    ]
    return sorted([*planned, *_drawn(scenario, places, seed)], key=lambda each: (each.at_s, each.level, each.name))


def _drawn(scenario: Scenario, places: dict[Level, dict[str, list[str]]], seed: int) -> Iterator[Outage]:
    """Of every place one after the other: it works for an exponential time, then it is repaired for another."""
    for number, level in enumerate(LEVELS):
        hazard = scenario.failures.random.get(level)
        if hazard is None:
            continue
        rng = np.random.default_rng([seed, number, 2])
        for name, devices in sorted(places[level].items()):
            at_s = rng.exponential(hazard.mtbf_hours * HOUR_S)
            while at_s < scenario.duration_s:
                until_s = at_s + rng.exponential(hazard.repair_s)
                yield Outage(at_s, until_s, level, name, tuple(devices))
                at_s = until_s + rng.exponential(hazard.mtbf_hours * HOUR_S)
