"""A stage replica answers for the release a query names, and holds few of them."""

from __future__ import annotations

import asyncio
import threading
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
    excluded: tuple[()] = ()


@pytest.fixture
def may_load() -> threading.Event:
    """A load waits for this; set unless a test clears it."""
    event = threading.Event()
    event.set()
    return event


@pytest.fixture
def loads(monkeypatch, may_load) -> list[str]:
    """Versions in the order they are loaded; version 9 does not exist."""
    loaded: list[str] = []

    def load_release(repository, version):
        loaded.append(version)
        if version == "9":
            raise NotFound("no release '9'")
        assert may_load.wait(60)
        return SimpleNamespace(version=version, catalogue=None)

    def load_stage(stage, release, settings, executor, tier):
        return lambda query: (stage, tier, release.version)

    monkeypatch.setattr(stages, "Release", SimpleNamespace(load=load_release))
    monkeypatch.setattr(stages, "load_stage", load_stage)
    return loaded


@pytest.fixture
def stage(tmp_path) -> Stage:
    return Stage("fine", "cpu", build_settings({"home": str(tmp_path)}))


async def test_a_query_is_answered_from_its_own_release_not_the_newest(loads, stage):
    await stage.reconfigure({"version": "2"})
    assert await stage.run(Query("1"), 0.5) == ("fine", "cpu", "1")
    assert await stage.run(Query("2"), 0.5) == ("fine", "cpu", "2")
    assert loads == ["2", "1"]


async def test_callers_that_come_together_load_a_release_once(loads, stage, may_load):
    may_load.clear()
    asked = [asyncio.create_task(stage.run(Query("1"), 1.0)) for _ in range(20)]
    await asyncio.sleep(0)
    may_load.set()
    answers = await asyncio.gather(*asked)
    assert set(answers) == {("fine", "cpu", "1")}
    assert loads == ["1"]


async def test_only_the_last_releases_are_kept(loads, stage):
    assert KEPT_RELEASES == 3
    for version in ("1", "2", "3", "4", "2", "3", "4", "1"):
        await stage.run(Query(version), 1.0)
    assert loads == ["1", "2", "3", "4", "1"]


async def test_a_release_in_use_outlives_one_that_is_not(loads, stage):
    for version in ("1", "2", "3", "1", "4", "1"):
        await stage.run(Query(version), 1.0)
    assert loads == ["1", "2", "3", "4"]


async def test_a_load_slower_than_any_deadline_is_done_once_and_serves_those_who_come_later(loads, stage, may_load):
    may_load.clear()
    for _ in range(3):
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(stage.run(Query("1"), 0.01), 0.01)
    may_load.set()
    assert await stage.run(Query("1"), 1.0) == ("fine", "cpu", "1")
    assert loads == ["1"]


@pytest.mark.parametrize(("after_s", "times"), [(60.0, 1), (0.0, 3)])
async def test_a_release_that_failed_to_load_is_tried_again_only_after_a_while(
    loads, stage, monkeypatch, after_s, times
):
    monkeypatch.setattr(stages, "RETRY_AFTER_S", after_s)
    for _ in range(3):
        with pytest.raises(NotFound):
            await stage.run(Query("9"), 1.0)
        await asyncio.sleep(0.001)
    assert loads == ["9"] * times


async def test_a_release_that_does_not_exist_is_the_callers_error_and_harms_nobody(loads, stage):
    for version in ("1", "2"):
        await stage.run(Query(version), 1.0)
    with pytest.raises(NotFound):
        await stage.run(Query("9"), 1.0)
    for version in ("1", "2"):
        assert await stage.run(Query(version), 1.0) == ("fine", "cpu", version)
    assert loads == ["1", "2", "9"]


@pytest.mark.parametrize("wrong", [{"version": "9"}, {"version": ["2"]}, {"release": "2"}])
async def test_a_wrong_choice_of_release_leaves_the_replica_running(loads, stage, wrong):
    await stage.reconfigure({"version": 1})
    await stage.reconfigure(wrong)
    assert await stage.run(Query("1"), 1.0) == ("fine", "cpu", "1")
    assert loads[0] == "1" and loads.count("1") == 1


async def test_without_a_choice_a_replica_loads_what_the_application_was_built_with(loads, tmp_path):
    stage = Stage("fine", "cpu", build_settings({"home": str(tmp_path)}), champion="3")
    await stage.reconfigure({"version": None})
    assert loads == ["3"]


async def test_with_nothing_published_a_replica_starts_and_waits(loads, stage):
    await stage.reconfigure({"version": None})
    assert loads == []
