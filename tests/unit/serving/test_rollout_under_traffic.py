"""Rollouts over two services that are asked all the time: the supervisor, the replicas' own judgement, and the traffic
are the real ones; only Ray and models are not there."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import Any

import pytest

from configs.errors import Unavailable
from configs.settings import build_settings
from deployments.releases.reporter import Reporter
from deployments.releases.supervisor import Supervisor
from pool.repository import CHAMPION, open_releases
from serving.experiments.rollout import RolloutPlan
from serving.experiments.spec import WHOLE, Traffic
from serving.schemas import RecommendRequest
from serving.service import Service
from tests.unit.serving.conftest import ITEMS

ABOUT = {"dataset": "tiny", "recipe": "test", "items": 1, "users": 1, "objectives": ("like",)}
PLAN = {"version": "2", "canary": (0.5,), "shadow_share": 0.5, "hold_s": 0.05, "least_requests": 20}


@pytest.fixture
def settings(tmp_path):
    limits = {"least_latencies": 10, "slo_ms": 10_000}
    return build_settings({"home": tmp_path, "dataset": "tiny", "releases": {"limits": limits}})


@pytest.fixture
def repository(settings):
    repository = open_releases(settings)
    for _ in range(2):
        with repository.draft(dict(ABOUT)) as draft:
            (draft.folder / "a.txt").write_text("a")
    repository.point(CHAMPION, "1")
    return repository


class Replicas:
    """Two services, and what Serve is to them: a choice goes to both."""

    def __init__(self, settings: Any):
        self._loop = asyncio.get_running_loop()
        self._choice: dict[str, Any] = {"version": "1"}
        self.services = [Service(settings) for _ in range(2)]
        self.supervisor = Supervisor(settings, self, look_s=0.005)
        limits = settings.releases.limits
        self._reporters = [
            Reporter(service, limits, self.supervisor, lambda name=str(n): name)  # type: ignore[misc]
            for n, service in enumerate(self.services)
        ]
        self.seen: Counter[tuple[str, int, str]] = Counter()

    def choice(self) -> dict[str, Any]:
        return self._choice

    def choose(self, choice: Any) -> None:
        self._choice = dict(choice)
        asyncio.run_coroutine_threadsafe(self.carry_out(), self._loop).result(20)

    async def carry_out(self) -> None:
        for service in self.services:
            await service.load(self._choice["version"])
            await service.divide(Traffic.model_validate(self._choice.get("traffic") or {}))

    async def ask(self, first: int) -> None:
        """Ask both for some users, at once; keep what each of them saw."""
        asks = [
            service.recommend(RecommendRequest(user_id=f"user {first + n}", k=5, timeout_ms=1_000))
            for n in range(10)
            for service in self.services
        ]
        for reply in await asyncio.gather(*asks):
            lacks = [each["reason"] for each in reply["degraded"] if each["stage"] != "features"]
            self.seen[reply["versions"]["release"], reply["returned"], ",".join(lacks)] += 1

    async def roll_out(self, **plan: Any) -> Any:
        """The view at the end of a rollout, with traffic all along."""
        await self.carry_out()
        await self.supervisor.begin(RolloutPlan.model_validate({**PLAN, **plan}))
        async with asyncio.timeout(60):
            turn = 0
            while not (await self.supervisor.view()).ended:
                await self.ask(turn)
                for reporter in self._reporters:
                    await reporter.look()
                await asyncio.sleep(0.001)
                turn += 10
        return await self.supervisor.view()

    async def close(self) -> None:
        for service in self.services:
            with suppress(RuntimeError):
                await service.close()


@pytest.fixture
async def replicas(loads, settings, repository):
    replicas = Replicas(settings)
    yield replicas
    await replicas.close()


async def test_a_good_release_takes_over_and_nobody_notices(replicas, repository, releases):
    view = await replicas.roll_out(begin_with="shadow")
    assert view.phase == "promoted", view
    assert {key[1:] for key in replicas.seen} == {(5, "")}
    assert [service.version for service in replicas.services] == ["2", "2"]
    assert repository.aliases() == {CHAMPION: "2"}
    assert sorted(releases["loaded"]) == ["1", "1", "2", "2"]
    assert any("shadow" in line for line in view.told)


def hidden(releases) -> None:
    releases["hidden"]["2"] = range(ITEMS)


def raising(releases) -> None:
    releases["stages"]["2"].failing["fine"] = RuntimeError("no such kernel")


def slow(releases) -> None:
    releases["stages"]["2"].delays_s["fine"] = 0.1


@pytest.mark.parametrize("begin_with", ["shadow", "canary"])
@pytest.mark.parametrize(("breaks", "said"), [(hidden, "empty: "), (raising, "broken: "), (slow, "slow: median")])
async def test_a_bad_release_is_rolled_back_by_itself_and_nobody_sees_its_faults(
    replicas, repository, releases, begin_with, breaks, said
):
    breaks(releases)
    view = await replicas.roll_out(begin_with=begin_with, hold_s=60)
    assert view.phase == "rolled_back" and said in view.reason
    assert {key[1:] for key in replicas.seen} == {(5, "")}
    assert [service.division.traffic for service in replicas.services] == [WHOLE, WHOLE]
    assert repository.aliases() == {CHAMPION: "1"}
    assert said in repository.history("2")[-1].reason
    await replicas.ask(0)


async def test_a_replica_that_cannot_load_the_release_ends_the_rollout(replicas, repository, releases):
    releases["refused"]["2"] = Unavailable("no room for it")
    view = await replicas.roll_out(begin_with="canary")
    assert view.phase == "rolled_back" and "no room for it" in view.reason
    assert {key[0] for key in replicas.seen} == {"1"}
