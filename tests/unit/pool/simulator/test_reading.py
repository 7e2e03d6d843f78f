"""What is wrong with a scenario is refused by name, before anything runs."""

from __future__ import annotations

import json

import numpy as np
import pytest
import yaml

from configs.errors import ConfigError, DataError
from pool.simulator.reading import load, read_scenario

DAY = "\n".join(f"2026-03-01T{hour:02d}:00:00Z,{100 + hour}" for hour in range(24))


def refused(tree, kind=ConfigError):
    with pytest.raises(kind) as error:
        load(tree)
    return error.value.message


def test_a_sound_scenario_is_taken(loaded):
    found = loaded()
    assert [service.name for service in found.scenario.services] == ["home"]
    assert found.demands["home"].rate_per_s(60) == 100


@pytest.mark.parametrize("missing", ["start_s", "price_per_hour"])
def test_a_kind_without_a_start_up_time_or_a_price_is_refused(tree, missing):
    changed = tree()
    del changed["kinds"]["gpu"][missing]
    assert f"kinds.gpu.{missing}" in refused(changed)


def test_wrong_bounds_of_an_autoscaler_are_refused(tree, service):
    assert "min_replicas" in refused(tree(services=[service(autoscale={"min_replicas": 3, "max_replicas": 2})]))
    assert "interval_s" in refused(tree(services=[service(autoscale={"max_replicas": 2})], interval_s=600))


def test_a_profile_without_a_start_up_time_is_refused(tree, service):
    changed = service()
    del changed["profiles"]["gpu"]["start_s"]
    assert "services.0.profiles.gpu.start_s" in refused(tree(services=[changed]))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"kinds": {"fpga": {"start_s": 1, "price_per_hour": 1}}}, "kinds.fpga"),
        ({"fleet": [{"kind": "npu"}]}, "fleet.0.kind"),
        ({"fleet": [{"kind": "gpu"}, {"kind": "gpu"}]}, "fleet: name 'gpu'"),
        ({"fleet": [{"kind": "gpu", "zones": 1000, "racks": 1000}]}, "1000000 devices"),
        ({"surprise": 1}, "surprise"),
        ({"duration_s": float("nan")}, "duration_s"),
        ({"works": [{"name": "home"}]}, "name 'home' is stated more than once"),
        ({"works": [{"name": "tune", "kind": "inference"}]}, "works.0"),
        ({"works": [{"name": "tune", "tier": "npu"}]}, "works.0.tier"),
        (
            {"failures": {"planned": [{"at_s": 1, "level": "rack", "name": "z9", "for_s": 1}]}},
            "failures.planned.0.name",
        ),
        ({"failures": {"planned": [{"at_s": 1e6, "level": "zone", "name": "z0", "for_s": 1}]}}, "after the end"),
        ({"begins": "2026-03-01T00:00:00"}, "begins"),
    ],
)
def test_what_is_wrong_is_named(tree, change, named):
    assert named in refused(tree(**change))


@pytest.mark.parametrize(
    ("demand", "named"),
    [
        ({"rate_per_s": -1}, "rate_per_s"),
        ({}, "state exactly one"),
        ({"rate_per_s": 1, "points": [[0, 1]]}, "found rate_per_s, points"),
        ({"points": [[0, 1], [10, 2], [5, 3]]}, "points.2: 5 s is not after 10 s"),
        ({"points": [[0, 1], [0, 2]]}, "points.1"),
        ({"points": [[0, -1]]}, "points.0.1"),
        ({"rate_per_s": 1, "mean_per_s": 5}, "mean_per_s"),
    ],
)
def test_a_wrong_demand_is_named(tree, service, demand, named):
    changed = service()
    changed["demand"] = demand
    message = refused(tree(services=[changed]))
    assert "services.0.demand" in message
    assert named in message


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (DAY.replace("105", "-105"), "row 7"),
        (DAY.replace("T05:00:00Z", "T05:00:00"), "row 7"),
        (DAY + "\n2026-03-01T05:00:00Z,9", "row 26"),
        ("2026-03-01T00:00:00Z,1\n2026-03-01T01:00:00Z,1\n2026-03-01T02:00:00Z,1", "covers 10800 s"),
    ],
)
def test_a_wrong_trace_is_refused_by_row(tree, service, tmp_path, rows, named):
    (tmp_path / "day.csv").write_text("timestamp,value\n" + rows + "\n")
    changed = service()
    changed["demand"] = {"trace": "day.csv"}
    with pytest.raises(DataError) as error:
        load(tree(services=[changed], duration_s=80_000), tmp_path)
    assert named in error.value.message


def test_a_trace_is_scaled_and_begins_when_it_says(tree, service, tmp_path):
    (tmp_path / "day.csv").write_text("timestamp,value\n" + DAY + "\n")
    changed = service()
    changed["demand"] = {"trace": "day.csv", "mean_per_s": 50}
    found = load(tree(services=[changed], duration_s=86_400), tmp_path)
    assert found.demands["home"].expected(0, 86_400) == pytest.approx(50 * 86_400, rel=0.01)
    assert found.begins_s == 1_772_323_200.0


def test_a_profile_may_be_a_file_that_was_measured(tree, service, tmp_path):
    changed = service()
    profile = changed["profiles"]["gpu"]
    start_s = profile.pop("start_s")
    (tmp_path / "measured.json").write_text(json.dumps(profile))
    changed["profiles"]["gpu"] = {"file": "measured.json", "start_s": start_s}
    (tmp_path / "scenario.yaml").write_text(yaml.safe_dump(tree(services=[changed])))
    assert read_scenario(tmp_path / "scenario.yaml").scenario.services[0].profiles["gpu"].p50_ms == (8.0, 32.0, 120.0)
    (tmp_path / "measured.json").write_text("{")
    with pytest.raises(ConfigError, match=r"services\.0\.profiles\.gpu\.file"):
        read_scenario(tmp_path / "scenario.yaml")


def test_a_file_that_is_no_scenario_is_refused(tmp_path):
    (tmp_path / "list.yaml").write_text("- 1\n")
    for name in ("list.yaml", "none.yaml"):
        with pytest.raises(ConfigError, match=name):
            read_scenario(tmp_path / name)


def test_drawn_arrivals_follow_the_rates(tree, service):
    changed = service()
    changed["demand"] = {"points": [[0, 100], [100, 300], [200, 100]]}
    demand = load(tree(services=[changed])).demands["home"]
    times_s = demand.times_s(0, 200, np.random.default_rng(0))
    assert len(times_s) == pytest.approx(40_000, rel=0.03)
    assert (np.diff(times_s) >= 0).all()
    counts, _ = np.histogram(times_s, bins=4, range=(0, 200))
    assert counts == pytest.approx([7_500, 12_500, 12_500, 7_500], rel=0.05)
    assert demand.expected(0, 200) == pytest.approx(40_000)
