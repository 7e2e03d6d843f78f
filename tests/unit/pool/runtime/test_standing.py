"""A warm-up that stands by gives its share back, and keeps its place until it is cancelled."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pool.work import Progress

STAND = {"kind": "warmup", "options": {"stand": True}, "min_milli": 800}


@pytest.fixture
def standing(run) -> str:
    """The lease of a warm-up whose host says that it stands."""
    lease = run.started("warm", **STAND)
    host = run.ground.hosts[lease]
    given_back = replace(host.lease, milli=0)
    run.ground.hosts[lease] = replace(
        host, lease=given_back, stands=True, progress=Progress(9, 9, "stands by"), result={"checked": 64}
    )
    run.tick()
    return lease


def slices(run) -> dict[str, object]:
    return {each.lease: each for device in run.controller.report().devices for each in device.slices}


def test_it_runs_at_a_hundred_percent_without_a_share(run, standing):
    report = run.controller.workload("warm")
    assert (report.phase, report.progress, report.result) == ("running", 1.0, {"checked": 64})
    assert "stands by" in report.reason
    assert (slices(run)[standing].leased_milli, slices(run)[standing].shadow) == (0, True)


def test_others_get_what_it_gave_back_and_nothing_is_decided_about_it(run, standing):
    device = run.controller.workload("warm").device
    for name in ("one", "two"):
        run.started(name, min_milli=900)
    assert device in {run.controller.workload(name).device for name in ("one", "two")}
    before = len(run.controller.report().decisions)
    run.tick(8)
    assert len(run.controller.report().decisions) == before
    assert run.phase("warm") == "running"


def test_it_goes_on_standing_under_another_controller(make, run, standing):
    second = make()
    assert slices(second)[standing].leased_milli == 0
    second.tick(2)
    assert second.phase("warm") == "running"


def test_it_stands_until_it_is_cancelled(run, standing):
    run.tick(200)
    run.controller.cancel("warm", "enough")
    assert (standing, "stop") in run.ground.told
    run.ground.ends(standing, "stopped")
    run.tick()
    assert run.phase("warm") == "cancelled" and standing not in slices(run)
