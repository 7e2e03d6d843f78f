"""Failures at random, and which devices they take."""

from __future__ import annotations

from itertools import pairwise

import pytest

from pool.simulator.outages import outages
from pool.simulator.world import World

DAY_S = 86_400


def drawn(loaded, seed=1, **random):
    scenario = loaded(duration_s=DAY_S, failures={"random": random}).scenario
    return outages(scenario, World(scenario).devices.values(), seed)


def test_a_place_fails_about_as_often_as_stated_and_again_only_after_its_repair(loaded):
    found = drawn(loaded, node={"mtbf_hours": 0.5, "repair_s": 600})
    working_s = 4 * DAY_S * 0.75  # of four nodes; half an hour of work to ten minutes of repair
    assert len(found) == pytest.approx(working_s / 1_800, rel=0.25)
    for name in {each.name for each in found}:
        own = [each for each in found if each.name == name]
        assert all(before.until_s < after.at_s for before, after in pairwise(own))
    assert [each.at_s for each in found] == sorted(each.at_s for each in found)


@pytest.mark.parametrize(("level", "devices"), [("device", 1), ("node", 1), ("rack", 1), ("zone", 2)])
def test_everything_at_a_place_is_lost_with_it(loaded, level, devices):
    found = drawn(loaded, **{level: {"mtbf_hours": 1, "repair_s": 60}})
    assert {len(each.devices) for each in found} == {devices}
    if level == "zone":
        assert all(device.startswith(f"gpu-{each.name}-") for each in found for device in each.devices)


def test_chance_is_the_seed(loaded):
    hazard = {"zone": {"mtbf_hours": 1, "repair_s": 60}}
    assert drawn(loaded, 1, **hazard) == drawn(loaded, 1, **hazard) != drawn(loaded, 2, **hazard)
