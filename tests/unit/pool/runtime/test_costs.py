"""The controller charges what is held, names a price that is missing, and has interruptible work save what it has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from configs.errors import Conflict
from configs.pool_settings import PoolSettings
from pool.runtime.costs import FILE
from pool.runtime.inventory import sites_of
from pool.runtime.messages import NodeFound, RayNode
from tests.unit.pool.runtime.conftest import DEVICES
from tests.unit.pool.runtime.test_claims import CLAIM

PRICED = PoolSettings.model_validate({"devices": [{**each, "price_per_hour": 3.6} for each in DEVICES]})


@pytest.fixture
def priced(make):
    """Two devices, each a thousandth of the currency a second."""
    return make(devices=PRICED.devices)


def test_leases_are_charged_by_workload_model_team_and_scene(priced):
    claim = replace(CLAIM, scenes={"home": 30, "detail": 10})
    priced.controller.claim(claim)
    priced.submit("night", team="ads")
    for _ in range(101):  # a tick a second; the first only looks at the clock
        priced.tick(every_s=1)
        priced.controller.claim(claim)
    found = priced.controller.costs()
    assert found.total == pytest.approx(2 * 0.1, rel=0.02)
    assert {line.name: line.cost for line in found.workloads} == pytest.approx(
        {"gateway": 0.025, "night": 0.03}, rel=0.03
    ), "a quarter and three tenths of a device"
    assert {line.name: line.cost for line in found.teams} == pytest.approx({"ads": 0.03, "(none)": 0.025}, rel=0.03)
    assert {line.name: line.cost for line in found.scenes} == pytest.approx(
        {"home": 0.01875, "detail": 0.00625}, rel=0.03
    )
    assert found.idle == pytest.approx(found.total - 0.055, rel=0.03)
    assert found.per_hour == pytest.approx(7.2)


def test_costs_outlive_a_controller_and_what_passed_without_one_is_told(priced, make):
    priced.tick(70, every_s=1)
    before = priced.controller.costs().total
    priced.clock.now_s += 600
    second = make(devices=PRICED.devices)
    second.tick(2, every_s=1)
    found = second.controller.costs()
    assert 0 < found.total <= before + 0.01
    assert found.unobserved_hours * 3_600 == pytest.approx(600, abs=75)


def test_a_damaged_file_is_set_aside(priced, make, tmp_path):
    priced.tick(3, every_s=1)
    (tmp_path / "pool" / FILE).write_text('{"format": 1, "months": []')
    second = make(devices=PRICED.devices)
    second.tick(2, every_s=1)
    assert second.controller.costs().total >= 0
    assert (tmp_path / "pool" / FILE).with_suffix(".unreadable").exists()


def test_a_device_without_a_price_is_named_by_its_setting(run):
    run.tick(3, every_s=1)
    with pytest.raises(
        Conflict, match=r"^pool\.devices\.0\.price_per_hour: gpu-0 has no price.*pool\.price_per_hour\.gpu"
    ):
        run.controller.costs()


def test_a_discovered_device_without_a_price_is_named_by_its_kind(make):
    run = make(devices=())
    run.tick(3, every_s=1)
    with pytest.raises(Conflict, match=r"^pool\.price_per_hour\.cpu: cpu-head has no price"):
        run.controller.costs()


def test_a_price_by_kind_is_that_of_devices_that_state_none():
    nodes, found = [RayNode("n1", "head", True, True, {})], {"n1": NodeFound((0, 1), 1 << 30, (), 0)}
    assert sites_of((), nodes, found, {"cpu": 0.5})["cpu-head"].device.price_per_hour == 0.5
    stated = (PRICED.devices[0], PoolSettings.model_validate({"devices": [DEVICES[1]]}).devices[0])
    sites = sites_of(stated, nodes, found, {"gpu": 9.0})
    assert {name: site.device.price_per_hour for name, site in sites.items()} == {"gpu-0": 3.6, "gpu-1": 9.0}


def test_interruptible_work_is_told_to_save_and_goes_on_and_what_has_just_saved_is_not(run):
    night, day = run.started("night"), run.started("day")
    served = run.started("served", kind="inference", priority="guaranteed", min_milli=100)
    run.ground.hosts[day] = replace(run.ground.hosts[day], checkpointed_s=1.0)
    run.tick()
    run.controller.warn("gateway goes from 2 to 4 replicas")
    assert [told for told in run.ground.told if told[1] == "warn"] == [(night, "warn")]
    assert (run.phase("night"), run.phase("served")) == ("running", "running")
    assert served in run.book()
