"""Releases and rollouts by HTTP, by a handle to the supervisor, and by the works that are done before any traffic."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import pytest

from configs.errors import ArtifactError, Conflict, NotFound, Unavailable
from configs.settings import build_settings
from deployments.cli_rollout import lines
from deployments.releases.offline_checks import OfflineChecks
from deployments.releases.routes import release_router
from deployments.releases.supervision import Supervision
from deployments.releases.views import ROLLOUT, RolloutView, plain
from pool.repository import CHAMPION, open_releases
from pool.workload import WorkloadSpec
from serving.experiments.rollout import RolloutPlan
from serving.http import build_http

VIEW = RolloutView("2", "1", "canary", 0.05, "20 answers in 3 s", {"challenger": {"requests": 20, "p50_ms": 4.5}})


class FakeService:
    why_not_ready = None


class FakeRollouts:
    """Takes one plan; a second one is refused."""

    def __init__(self) -> None:
        self.plans: list[RolloutPlan] = []
        self.reasons: list[str] = []

    async def begin(self, plan: RolloutPlan) -> RolloutView:
        if plan.version == "9":
            raise NotFound("no release '9'")
        if self.plans:
            raise Conflict("the rollout of release 2 is under way")
        self.plans.append(plan)
        return VIEW

    async def view(self) -> RolloutView:
        return VIEW

    async def cancel(self, reason: str) -> RolloutView:
        self.reasons.append(reason)
        return replace(VIEW, phase="rolled_back", reason=reason)


@pytest.fixture
def rollouts() -> FakeRollouts:
    return FakeRollouts()


def asking(settings, rollouts, name: str = "localhost:8000") -> httpx.AsyncClient:
    app = build_http(FakeService(), settings.serving, [release_router(settings, rollouts)])  # type: ignore[arg-type]
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=f"http://{name}")


@pytest.fixture
def settings(tmp_path):
    return build_settings({"home": tmp_path, "dataset": "tiny"})


async def test_releases_are_listed_with_their_aliases(settings, rollouts):
    repository = open_releases(settings)
    about = {"dataset": "tiny", "recipe": "test", "items": 3, "users": 2, "objectives": ("like",)}
    for _ in range(2):
        with repository.draft(dict(about)) as draft:
            (draft.folder / "a.txt").write_text("hello")
    repository.point(CHAMPION, "2")
    async with asking(settings, rollouts) as client:
        found = (await client.get("/v1/releases")).json()["releases"]
    assert [(each["version"], each["aliases"], each["bytes"]) for each in found] == [
        ("1", [], 5),
        ("2", ["champion"], 5),
    ]


async def test_a_rollout_is_begun_seen_and_cancelled(settings, rollouts):
    async with asking(settings, rollouts) as client:
        begun = await client.post(ROLLOUT, json={"version": "2", "canary": [0.1, 0.5], "hold_s": 5})
        seen = await client.get(ROLLOUT)
        ended = await client.post(f"{ROLLOUT}/cancel", json={"reason": "not today"})
    assert begun.status_code == seen.status_code == ended.status_code == 200
    assert rollouts.plans == [RolloutPlan(version="2", canary=(0.1, 0.5), hold_s=5)]
    assert (seen.json()["phase"], seen.json()["ended"]) == ("canary", False)
    assert (ended.json()["phase"], ended.json()["ended"], rollouts.reasons) == ("rolled_back", True, ["not today"])


async def test_other_methods_are_refused_with_those_that_there_are(settings, rollouts):
    async with asking(settings, rollouts) as client:
        for path, methods in ((ROLLOUT, {"GET", "POST"}), (f"{ROLLOUT}/cancel", {"POST"})):
            reply = await client.options(path)
            assert (reply.status_code, set(reply.headers["allow"].split(", "))) == (405, methods)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"version": "../2"}, 422, "version"),
        ({}, 422, "version"),
        ({"version": "2", "canary": [0.5, 0.1]}, 422, "rise"),
        ({"version": "2", "hold_s": "5"}, 422, "hold_s"),
        ({"version": "2", "speed": 3}, 422, "speed"),
        ({"version": "9"}, 404, "no release '9'"),
    ],
)
async def test_a_wrong_plan_is_refused_by_its_field(settings, rollouts, body, status, said):
    async with asking(settings, rollouts) as client:
        reply = await client.post(ROLLOUT, json=body)
    assert reply.status_code == status
    assert said in reply.json()["error"]["message"]
    assert rollouts.plans == []


async def test_a_second_rollout_is_a_conflict(settings, rollouts):
    async with asking(settings, rollouts) as client:
        assert (await client.post(ROLLOUT, json={"version": "2"})).status_code == 200
        assert (await client.post(ROLLOUT, json={"version": "3"})).status_code == 409


async def test_changes_from_elsewhere_need_the_token(settings, rollouts):
    async with asking(settings, rollouts, name="elsewhere.example") as client:
        assert (await client.post(ROLLOUT, json={"version": "2"})).status_code == 401
        assert (await client.get(ROLLOUT)).status_code == 200


def test_a_rollout_is_told_to_people():
    assert lines(plain(VIEW)) == [
        "release 2 beside 1: canary at 5.0%  20 answers in 3 s", "  challenger  requests 20  p50_ms 4.5"
    ]  # fmt: skip
    assert "no rollout" in lines(plain(RolloutView()))[0]


class FakeActor:
    """A handle whose methods answer, or never do."""

    def __init__(self, silent: bool = False):
        async def view() -> RolloutView:
            return VIEW

        async def begin(plan: RolloutPlan) -> RolloutView:
            await asyncio.sleep(60 if silent else 0)
            return VIEW

        self.view, self.begin = (type("Method", (), {"remote": staticmethod(each)}) for each in (view, begin))


async def test_a_supervisor_is_started_by_the_first_rollout_and_is_starting_until_it_answers(settings):
    started: list[Any] = []

    def start(_: Any) -> FakeActor:
        started.append(FakeActor(silent=True))
        return started[-1]

    supervision = Supervision(settings, lambda: None, start, timeout_s=0.02)
    assert (await supervision.view()).phase == "none"
    with pytest.raises(Conflict, match="no rollout is under way"):
        await supervision.cancel("x")
    assert (await supervision.begin(RolloutPlan(version="2"))).phase == "starting"
    assert len(started) == 1


@dataclass
class FakePool:
    """Runs a workload in two looks; it ends in the given phase."""

    phase: str = "succeeded"
    specs: list[WorkloadSpec] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)
    looks: int = 0

    async def report(self) -> Any:
        return type("Report", (), {"devices": [type("Device", (), {"kind": "gpu"})]})

    async def submit(self, spec: WorkloadSpec) -> Any:
        self.specs.append(spec)
        return await self.workload(spec.name)

    async def workload(self, name: str) -> Any:
        self.looks += 1
        phase = self.phase if self.looks > 1 else "running"
        return type("Report", (), {"phase": phase, "reason": "why", "result": {"checked": 4}})

    async def cancel(self, name: str, reason: str) -> Any:
        self.cancelled.append(name)


async def test_with_a_pool_the_checks_are_workloads_of_it(settings, monkeypatch):
    monkeypatch.setattr("deployments.releases.offline_checks.POLL_S", 0.001)
    pool = FakePool()
    assert await OfflineChecks(settings, pool).warm_up("2") == {"checked": 4}  # type: ignore[arg-type]
    pool.looks = 0
    await OfflineChecks(settings, pool).evaluate(("1", "2"))  # type: ignore[arg-type]
    warmup, evaluate = pool.specs
    assert (warmup.name, warmup.kind, warmup.version, warmup.tier) == ("rollout-2-warmup", "warmup", "2", ("gpu",))
    assert (evaluate.kind, evaluate.options["versions"]) == ("evaluate", ["1", "2"])
    with pytest.raises(Unavailable, match="failed: why"):
        await OfflineChecks(settings, FakePool("failed")).warm_up("2")  # type: ignore[arg-type]


async def test_a_check_that_is_given_up_is_cancelled_in_the_pool(settings):
    pool = FakePool("running")
    check = asyncio.create_task(OfflineChecks(settings, pool).warm_up("2"))  # type: ignore[arg-type]
    await asyncio.sleep(0.01)
    check.cancel()
    with pytest.raises(asyncio.CancelledError):
        await check
    assert pool.cancelled == ["rollout-2-warmup"]


class FakeProcess:
    """Says something on its standard output."""

    returncode = 3

    def __init__(self, out: bytes):
        self._out = out

    async def communicate(self, order: bytes) -> tuple[bytes, bytes]:
        assert json.loads(order)["kind"] == "warmup"
        return self._out, b""


@pytest.mark.parametrize(
    ("out", "kind", "said"),
    [(b'{"error": "release 2: empty"}', ArtifactError, "release 2: empty"), (b"", Unavailable, "exit code 3")],
)
async def test_what_a_process_says_is_told(settings, monkeypatch, out, kind, said):
    async def start(*_: Any, **__: Any) -> FakeProcess:
        return FakeProcess(out)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    with pytest.raises(kind, match=said):
        await OfflineChecks(settings).warm_up("2")
