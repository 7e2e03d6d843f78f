"""What the month costs, by HTTP, as metrics and on the command line; and what the autoscaler decided."""

from __future__ import annotations

import asyncio
import json
from dataclasses import asdict, replace

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from configs.errors import Unavailable
from configs.settings import Settings
from deployments import cli_pool, pool_ask
from deployments.autoscaling import ScaleReport
from deployments.cost_view import cost_lines
from deployments.pool_client import PoolClient
from deployments.pool_routes import pool_router
from deployments.scale_routes import scale_router
from serving.http import build_http
from tests.unit.deployments.pools import FakeController, FakeHandle, month


class FakeService:
    why_not_ready = None


REPORT = ScaleReport("gateway", 1e9, 4, 3, 1, 181.5, 12.0, ("forecast 190/s at +20 s (q90) needs 4 of 50/s each",))


class Service:
    """One whose pool and autoscaler say what a test lets them; asked by a client or by the command line."""

    def __init__(self) -> None:
        self.controller, self.scaling = FakeController(), (REPORT,)
        pool = PoolClient(lambda: FakeHandle(self.controller))
        routers = [pool_router(Settings(), pool), scale_router(self._reports)]
        self.http = build_http(FakeService(), Settings().serving, routers)  # type: ignore

    async def _reports(self) -> tuple[ScaleReport, ...]:
        if self.scaling is None:
            raise Unavailable("no autoscaler runs")
        return self.scaling

    def request(self, method: str, url: str, timeout_s: float = 0.0) -> httpx.Response:
        async def answer() -> httpx.Response:
            transport = httpx.ASGITransport(app=self.http, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8000") as client:
                return await client.request(method, url)

        return asyncio.run(answer())

    def get(self, path: str) -> httpx.Response:
        return self.request("GET", path)


@pytest.fixture(scope="module")
def built() -> Service:
    return Service()


@pytest.fixture
def service(built, monkeypatch) -> Service:
    built.controller.prices, built.scaling = month(), (REPORT,)
    monkeypatch.setattr(pool_ask.plain_http, "request", built.request)
    return built


def test_the_costs_are_what_the_controller_says(service):
    assert service.get("/v1/pool/cost").json() == json.loads(json.dumps(asdict(month())))


def test_without_a_price_the_setting_is_named_and_the_other_metrics_stay(service):
    service.controller.prices = None
    refused = service.get("/v1/pool/cost")
    assert refused.status_code == 409
    assert "pool.devices.0.price_per_hour" in refused.json()["error"]["message"]
    assert "recpool_pool_epoch" in (text := service.get("/v1/pool/metrics").text) and "cost" not in text


def test_metrics_have_every_group_and_the_month(service):
    found = {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(service.get("/v1/pool/metrics").text)
        for sample in family.samples
        if sample.name.startswith("recpool_pool_cost_")
    }
    assert found["recpool_pool_cost_month_expected",] == 1_080
    assert found["recpool_pool_cost_month_saved",] == 1
    assert found["recpool_pool_cost_workload_total", "nightly"] == 1.25
    assert found["recpool_pool_cost_scene_total", "home"] == 2
    assert found["recpool_pool_cost_team_total", "ads"] == 1.25


def test_the_command_line_shows_the_month_and_its_tables(service, capsys):
    cli_pool.cost()
    said = capsys.readouterr().out
    assert "5.75 so far, 1080.00 expected" in said and "the pool saved 1.00, 17%" in said
    assert [line.split() for line in said.splitlines() if line.startswith("gateway")] == [
        ["gateway", "2.50", "50.0%", "3.40", "2.00"]
    ]
    cli_pool.cost(as_json=True)
    assert json.loads(capsys.readouterr().out)["saved"] == 1


def test_a_pool_that_costs_more_than_dedicated_devices_says_so():
    assert "the pool cost 50% more" in "\n".join(cost_lines(replace(month(), dedicated=10.0, saved=-5.0)))
    assert "nothing has run yet" in "\n".join(cost_lines(replace(month(), dedicated=0.0, saved=-5.0)))


def test_the_autoscalers_decisions_are_shown_with_their_reasons(service, capsys):
    cli_pool.scaling()
    said = capsys.readouterr().out
    assert said.startswith("gateway: 4 replicas (3 run, 1 start) for 181.5/s, 12 wait: forecast 190/s at +20 s")
    assert service.get("/v1/pool/scaling").json()["deployments"][0]["replicas"] == 4


def test_without_an_autoscaler_it_is_unavailable(service):
    service.scaling = None
    assert service.get("/v1/pool/scaling").status_code == 503
