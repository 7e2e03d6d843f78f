"""``recpool simulate``, and the live admission in it."""

from __future__ import annotations

import json

import pytest
import yaml

from configs.overload_settings import OverloadSettings
from deployments.simulated_door import LiveDoor
from pool.simulator.scenario import ServiceSettings

PROFILE = {"batch_rows": [1, 4], "p50_ms": [10.0, 20.0], "p99_ms": [10.0, 20.0], "start_s": 5}
SERVICE = {
    "name": "home",
    "min_milli": 300,
    "slo_ms": 100,
    "max_wait_ms": 100,
    "max_batch_rows": 4,
    "profiles": {"gpu": PROFILE},
    "demand": {"rate_per_s": 20},
}


@pytest.fixture
def scenario(tmp_path):
    """Writes a scenario and returns its path."""

    def write(**changed):
        tree = {
            "duration_s": 20,
            "kinds": {"gpu": {"start_s": 5, "price_per_hour": 3.0, "emulated": True}},
            "fleet": [{"kind": "gpu", "racks": 2}],
            "services": [SERVICE],
            "works": [{"name": "tune", "min_milli": 200}],
        }
        file = tmp_path / "scenario.yaml"
        file.write_text(yaml.safe_dump(tree | changed))
        return str(file)

    return write


def test_a_scenario_is_a_table_or_one_document(run, scenario):
    code, out, err = run("simulate", scenario())
    assert code == 0
    assert "home" in out and "tune" in out
    assert "emulated" in out
    assert "20 s of 2 devices took" in err
    code, out, _ = run("simulate", scenario(), "--json")
    found = json.loads(out)
    assert (code, found["mode"], found["devices"]) == (0, "requests", 2)
    assert found["services"]["home"]["asked"] == pytest.approx(400, abs=100)
    assert found["price"] == pytest.approx(2 * 3.0 * 20 / 3_600)


def test_a_seed_decides_and_can_be_stated(run, scenario):
    file = scenario()
    first, again, other = (json.loads(run("simulate", file, "--json", "--seed", seed)[1]) for seed in ("1", "1", "2"))
    assert first == again
    assert first["services"] != other["services"]


def test_what_is_wrong_is_named_and_nothing_runs(run, scenario):
    code, out, err = run("simulate", scenario(kinds={"gpu": {"start_s": 5}}))
    assert (code, out) == (2, "")
    assert "kinds.gpu.price_per_hour" in err
    code, _, err = run("simulate", "nowhere")
    assert code == 2
    assert "small" in err
    code, _, err = run("simulate", scenario(), "--mode", "guess")
    assert code == 2
    assert "mode" in err


def test_a_simulated_replica_refuses_by_the_rules_of_the_live_one():
    """It learns that a batch takes 20 ms; of a line that needs longer than 100 ms, the next request is turned away."""
    door = LiveDoor(OverloadSettings(), ServiceSettings.model_validate(SERVICE))
    now_s = 0.0
    for _ in range(50):
        door.queued(now_s)
        batch = door.started(1, 0.0, now_s)
        now_s += 0.02
        door.done(batch, now_s)
    door.queued(now_s)
    door.started(1, 0.0, now_s)
    taken = 0
    while door.admits(now_s, now_s):
        door.queued(now_s)
        taken += 1
        assert taken < 100
    assert taken * 20 == pytest.approx(80, abs=20)
