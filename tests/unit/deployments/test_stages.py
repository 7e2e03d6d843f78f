"""A stage replica answers for the release a query names, and holds few of them."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from types import SimpleNamespace

import pytest

from configs.errors import NotFound
from configs.settings import build_settings
from deployments import stages
from deployments.stages import KEPT_RELEASES, Stage


@dataclass(frozen=True)
class Query:
    version: str


@pytest.fixture
def loads(monkeypatch) -> list[str]:
    """Versions in the order they are loaded; loading takes a moment, and version 9 does not exist."""
    loaded: list[str] = []

    def load_release(repository, version):
        if version == "9":
            raise NotFound("no release '9'")
        time.sleep(0.02)
        loaded.append(version)
        return SimpleNamespace(version=version)

    def load_stage(stage, release, settings, executor, tier):
        async def answer(query, timeout_s):
            return (stage, tier, release.version, timeout_s)

        return answer

    monkeypatch.setattr(stages, "Release", SimpleNamespace(load=load_release))
    monkeypatch.setattr(stages, "load_stage", load_stage)
    return loaded


@pytest.fixture
def stage(tmp_path) -> Stage:
    return Stage("fine", "cpu", build_settings({"home": str(tmp_path)}))


async def test_a_query_is_answered_from_its_own_release_not_the_newest(loads, stage):
    await stage.reconfigure({"version": "2"})
    assert await stage.run(Query("1"), 0.5) == ("fine", "cpu", "1", 0.5)
    assert await stage.run(Query("2"), 0.5) == ("fine", "cpu", "2", 0.5)
    assert loads == ["2", "1"]


async def test_callers_that_come_together_load_a_release_once(loads, stage):
    answers = await asyncio.gather(*(stage.run(Query("1"), 1.0) for _ in range(20)))
    assert set(answers) == {("fine", "cpu", "1", 1.0)}
    assert loads == ["1"]


async def test_only_the_last_releases_are_kept(loads, stage):
    for version in ("1", "2", "3"):
        await stage.run(Query(version), 1.0)
    assert list(stage._loaded) == ["2", "3"]
    assert len(stage._loaded) == KEPT_RELEASES


async def test_a_release_in_use_outlives_one_that_is_not(loads, stage):
    for version in ("1", "2", "1", "3"):
        await stage.run(Query(version), 1.0)
    assert set(stage._loaded) == {"1", "3"}


async def test_a_release_that_does_not_exist_is_the_callers_error_and_harms_nobody(loads, stage):
    await stage.run(Query("1"), 1.0)
    with pytest.raises(NotFound):
        await stage.run(Query("9"), 1.0)
    assert await stage.run(Query("1"), 1.0) == ("fine", "cpu", "1", 1.0)


async def test_a_wrong_choice_of_release_leaves_the_replica_running(loads, stage):
    await stage.reconfigure({"version": "1"})
    await stage.reconfigure({"version": "9"})
    assert await stage.run(Query("1"), 1.0) == ("fine", "cpu", "1", 1.0)


async def test_with_nothing_published_a_replica_starts_and_waits(loads, stage):
    await stage.reconfigure({"version": None})
    assert loads == []
