"""The application on Ray Serve: fused and split are the same service, and neither needs data to start."""

from __future__ import annotations

import csv
from pathlib import Path

import httpx
import numpy as np
import pytest
from ray import serve

from configs.settings import STAGES, Settings, build_settings
from deployments import offline
from deployments.app import compose
from features.ingest_spec import IngestSpec

RESOURCES = {"CPU": 4.0}
USERS, ITEMS, EVENTS = 60, 50, 1_500


def quiet(stage: str, fraction: float) -> None:
    """No progress."""


def settings_of(home: Path, split: bool) -> Settings:
    # Fused is what the plan derives on a machine without accelerators.
    stages = {stage: {"fused": False if split else None, "replicas": 1} for stage in STAGES}
    serving = {"default_timeout_ms": 1_000}  # a busy test machine must not degrade an answer
    plan = {"stages": stages}
    return build_settings({"home": str(home), "dataset": "tiny", "plan": plan, "serving": serving})


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A home with a dataset, a release that is champion, and a filled store."""
    home = tmp_path_factory.mktemp("app")
    random, file = np.random.default_rng(3), home / "events.csv"
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["user_id", "item_id", "value", "time_s"])
        for number in range(EVENTS):
            user, item = random.integers(USERS), random.zipf(1.4) % ITEMS
            writer.writerow([f"u{user}", f"i{item}", int(random.integers(1, 6)), 1_000_000_000 + number])
    settings = settings_of(home, split=False)
    offline.save_dataset(settings, IngestSpec(name="tiny", interactions=file), quiet)
    offline.train(settings, "quick", quiet)
    offline.ensure_store(settings, quiet)
    return home


@pytest.fixture(scope="module")
def service(serve_address, home):
    """Addresses of the fused and of the split application, side by side."""
    for name in ("fused", "split"):
        app = compose(settings_of(home, split=name == "split"), RESOURCES)
        serve.run(app, name=name, route_prefix=f"/{name}")
    yield {name: f"{serve_address}/{name}" for name in ("fused", "split")}
    for name in ("fused", "split"):
        serve.delete(name)


def ask(address: str, path: str = "/v1/recommend", **body) -> dict:
    reply = httpx.post(address + path, json=body, timeout=60)
    assert reply.status_code == 200, reply.text
    return reply.json()


@pytest.mark.parametrize(
    "body",
    [
        {"user_id": "u3", "k": 10},
        {"user_id": "nobody", "k": 5},
        {"k": 7, "seed_item_ids": ["i1", "i2"]},
        {"user_id": "u3", "k": 10, "exclude_item_ids": ["i1"], "exclude_seen": False},
    ],
)
def test_fused_and_split_give_identical_answers(service, body):
    fused, split = (ask(service[name], dry_run=True, **body) for name in ("fused", "split"))
    assert fused["items"] == split["items"]
    assert fused["degraded"] == split["degraded"]
    assert fused["items"]


@pytest.mark.parametrize(("path", "body"), [("/v1/rank", {"user_id": "u3"}), ("/v1/similar", {})])
def test_the_other_routes_are_identical_too(service, path, body):
    fused, split = (ask(service[n], path, item_ids=["i1", "i2", "i3"], **body) for n in ("fused", "split"))
    assert fused["items"] == split["items"]


def test_the_status_says_where_each_stage_runs(service):
    plans = {name: httpx.get(f"{address}/v1/status", timeout=30).json()["plan"] for name, address in service.items()}
    status = httpx.get(f"{service['fused']}/v1/status", timeout=30).json()
    assert status["tiers"] == dict.fromkeys(STAGES, "cpu")
    assert plans == {"fused": dict.fromkeys(STAGES, "fused"), "split": dict.fromkeys(STAGES, "handle")}


def test_every_split_stage_is_a_deployment_of_its_own(service):
    running = serve.status().applications
    assert set(running["fused"].deployments) == {"gateway"}
    assert set(running["split"].deployments) == {"gateway", *STAGES}


def test_a_service_without_data_starts_is_alive_and_says_it_is_not_ready(serve_address, tmp_path):
    serve.run(compose(settings_of(tmp_path, split=False), RESOURCES), name="empty", route_prefix="/empty")
    try:
        assert httpx.get(f"{serve_address}/empty/healthz", timeout=30).status_code == 200
        ready = httpx.get(f"{serve_address}/empty/readyz", timeout=30)
        assert ready.status_code == 503
        assert "recpool train" in ready.json()["reason"]
        assert httpx.post(f"{serve_address}/empty/v1/recommend", json={}, timeout=30).status_code == 503
    finally:
        serve.delete("empty")
