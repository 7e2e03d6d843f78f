"""Replica counts follow demand on a real Serve: one more comes with the load and leaves with it; no call is lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator

import httpx
import pytest
import ray
from ray import serve

from configs.autoscale_settings import AutoscaleSettings
from configs.settings import build_settings
from deployments.autoscaling import ScaleReport, ServeCounts, start_autoscaler
from deployments.load_reports import CallLoad, LoadReporter

APP = "scaled"
PER_S, WAIT_S, TAKES_S = 40, 60, 0.02


class Echo:
    """Answers after a moment, counts what it does, and reports that as a gateway does."""

    def __init__(self, settings: AutoscaleSettings):
        self._load = CallLoad(settings.slo_ms)
        self._reporter = LoadReporter(settings, "gateway", self._load)

    async def reconfigure(self, user_config: dict) -> None:
        self._reporter.start()

    async def __call__(self, request) -> str:
        with self._load.call(1):
            await asyncio.sleep(TAKES_S)
        return "answered"


@pytest.fixture
def autoscaler(serve_address, tmp_path) -> Iterator[object]:
    """The autoscaler of an application whose replicas are good for 25 calls a second each."""
    scaled = {"max_replicas": 2, "start_s": 2, "curve": [{"rate_per_s": 25, "p99_ms": 50}]}
    settings = build_settings(
        {
            "home": str(tmp_path),
            "autoscale": {"deployments": {"gateway": scaled}, "interval_s": 0.5, "fast_s": 2, "down_after_s": 2},
            "forecast": {"step_s": 1, "max_lead_s": 60},
        }
    )
    handle = start_autoscaler(settings)
    wrap = serve.deployment(name="gateway", user_config={"version": None}, ray_actor_options={"num_cpus": 0.1})
    serve.run(wrap(Echo).bind(settings.autoscale), name=APP, route_prefix=f"/{APP}", external_scaler_enabled=True)
    yield handle
    serve.delete(APP)
    ray.kill(handle)


def running() -> int:
    seen = ServeCounts().replicas(APP, "gateway")
    return seen.running if seen else 0


async def load_until(address: str, wanted: int, per_s: float) -> list[int]:
    """Call at a steady rate until so many replicas run; the statuses of all calls."""
    until_s, replies = time.monotonic() + WAIT_S, []
    async with httpx.AsyncClient(timeout=20, trust_env=False) as client:
        while await asyncio.to_thread(running) != wanted and time.monotonic() < until_s:
            for _ in range(round(per_s / 2)):
                replies.append(asyncio.create_task(client.get(f"{address}/{APP}")))
                await asyncio.sleep(0.5 / (per_s / 2))
        answered = await asyncio.gather(*replies)
    return [reply.status_code for reply in answered]


async def test_one_replica_more_comes_with_the_load_and_leaves_with_it(autoscaler, serve_address):
    statuses = await load_until(serve_address, wanted=2, per_s=PER_S)
    assert running() == 2
    statuses += await load_until(serve_address, wanted=1, per_s=4)
    assert running() == 1
    assert set(statuses) == {200}
    [report] = await autoscaler.reports.remote()
    assert isinstance(report, ScaleReport)
    assert report.replicas == 1 and report.reasons
