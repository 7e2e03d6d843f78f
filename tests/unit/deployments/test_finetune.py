"""A fine-tune as a job: what it declares, what it refuses before it declares anything, what it tells, how it ends."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from dataclasses import replace
from typing import Any

import pytest

from configs.errors import ConfigError, Conflict, NotFound, Unavailable
from configs.settings import Settings
from deployments import finetune
from deployments.finetune import OnStop, Telling
from deployments.finetune_request import Wanted, declare
from deployments.pool_client import PoolClient
from deployments.pool_follow import Follower, Moment, Trouble
from pool.repository import CHAMPION, ReleaseRepository
from pool.views import PoolReport, WorkloadReport
from tests.unit.deployments.pools import FakeController, FakeHandle, device, full_report, slice_of, workload

DONE = {"version": "2", "start_from": "1", "metrics": {}}


@pytest.fixture
def settings(tmp_path) -> Settings:
    """A home with releases 1, trained by quick and the champion, and 2, trained by full."""
    settings = Settings(home=tmp_path)
    repository = ReleaseRepository(settings.releases_folder)
    for recipe in ("quick", "full"):
        with repository.draft({"dataset": "d", "recipe": recipe, "items": 1, "users": 1, "objectives": ()}):
            pass
    repository.point(CHAMPION, "1")
    return settings


def wanted(**changed: Any) -> Wanted:
    fields: dict[str, Any] = {"name": "nightly", "start_from": CHAMPION, "recipe": None, "training": {}, "slice": {}}
    return Wanted(**{**fields, **changed})


def pool_with(*workloads: WorkloadReport) -> PoolReport:
    return replace(full_report(), devices=(device("gpu-0"),), workloads=workloads)


def test_it_is_declared_to_start_from_the_champion_with_its_recipe_on_any_device_there_is(settings):
    spec = declare(
        settings, pool_with(), wanted(training={"epochs": 1, "seed": None}, slice={"min_milli": 200, "tier": None})
    )
    assert (spec.name, spec.kind, spec.rank, spec.version) == ("nightly", "finetune", "best_effort", "1")
    assert spec.options == {"start_from": "1", "recipe": "quick", "epochs": 1}
    assert (spec.tier, spec.min_milli) == (("gpu",), 200)


@pytest.mark.parametrize(
    ("start_from", "recipe", "version", "options"),
    [
        ("2", None, "2", {"start_from": "2", "recipe": "full"}),
        ("2", "full", "2", {"start_from": "2", "recipe": "full"}),
        ("scratch", None, None, {"recipe": "quick"}),
        ("scratch", "full", None, {"recipe": "full"}),
    ],
)
def test_the_recipe_is_that_of_the_release_it_starts_from(settings, start_from, recipe, version, options):
    spec = declare(settings, pool_with(), wanted(start_from=start_from, recipe=recipe))
    assert (spec.version, spec.options) == (version, options)


@pytest.mark.parametrize(
    ("changed", "error", "said"),
    [
        ({"start_from": "7"}, NotFound, "--start-from: no release '7'; published: .*'1', '2'"),
        ({"start_from": "../x"}, NotFound, "--start-from"),
        ({"recipe": "full"}, ConfigError, "--recipe full: release 1 was trained by quick.*--start-from scratch"),
        ({"recipe": "best"}, ConfigError, "--recipe: .*best.*quick"),
        ({"name": "Nightly"}, ConfigError, "--name"),
        ({"slice": {"min_milli": 1001}}, ConfigError, "--min-milli"),
        ({"slice": {"min_milli": 500, "desired_milli": 100}}, ConfigError, "desired_milli: 100 is below min_milli"),
        ({"slice": {"tier": ("tpu",)}}, ConfigError, "--tier"),
        ({"slice": {"tier": ("npu",)}}, ConfigError, "--tier npu: the pool has no such device; it has gpu"),
    ],
)
def test_what_is_wrong_is_told_by_option_before_anything_is_submitted(settings, changed, error, said):
    with pytest.raises(error, match=said):
        declare(settings, pool_with(), wanted(**changed))


def test_without_a_champion_it_says_what_to_do(tmp_path):
    with pytest.raises(NotFound, match="--start-from champion: .*--start-from scratch"):
        declare(Settings(home=tmp_path), pool_with(), wanted())


@pytest.mark.parametrize("phase", ["queued", "running", "preempted", "parked"])
def test_a_name_that_a_live_workload_has_is_refused_with_the_remedy(settings, phase):
    with pytest.raises(Conflict, match=f"--name nightly: .* {phase}; .*recpool pool cancel nightly"):
        declare(settings, pool_with(workload("nightly", phase=phase)), wanted())


@pytest.mark.parametrize("phase", ["succeeded", "failed", "cancelled"])
def test_a_name_is_free_again_when_its_workload_is_over(settings, phase):
    assert declare(settings, pool_with(workload("nightly", phase=phase)), wanted()).name == "nightly"


class Play(FakeController):
    """A pool that shows one picture after the other, of a workload that is submitted meanwhile; the last one stays."""

    def __init__(self, *pictures: PoolReport | Exception):
        super().__init__()
        self.shown = pool_with()
        self.pictures = list(pictures)

    def report(self) -> PoolReport:
        if not self.specs:
            return self.shown
        picture = self.pictures.pop(0) if len(self.pictures) > 1 else self.pictures[0]
        if isinstance(picture, Exception):
            raise picture
        return picture


def stands(phase: str, lease: str | None = None, **more: Any) -> PoolReport:
    """The pool with the workload in a phase; with a slice of figures where a lease is given."""
    figures = {"steps_per_s": more.pop("steps_per_s", None), "preemptions": more.pop("preemptions", 0)}
    held = () if lease is None else (slice_of("finetune", 370, 300, lease=lease, workload="nightly", **figures),)
    report = pool_with(workload("nightly", phase=phase, device="gpu-0", **more))
    return replace(report, devices=(device("gpu-0", held),))


RUN = (
    stands("queued", reason="waits for the next tick"),
    stands("running", "1", reason="runs on gpu-0"),
    stands("running", "1", reason="runs on gpu-0", progress=0.12, steps_per_s=41.5, preemptions=17),
    Unavailable("the controller starts again"),
    stands("preempted", reason="gave way", progress=0.5),
    stands("running", "2", reason="goes on", progress=0.6, steps_per_s=40.0, preemptions=3),
)
SUCCEEDED = stands("succeeded", reason="its work is done", progress=1.0, result=DONE)


async def play(settings: Settings, controller: Play, as_json: bool = False, on_stop: OnStop = OnStop.cancel) -> int:
    pool = PoolClient(lambda: FakeHandle(controller))
    return await finetune.run(pool, settings, wanted(), on_stop, 0.001, Telling("nightly", as_json))


async def test_it_tells_how_it_goes_and_ends_as_the_workload_ends(settings, capsys):
    assert await play(settings, Play(*RUN, SUCCEEDED)) == 0
    assert capsys.readouterr().out.splitlines() == [
        "nightly  queued on gpu-0 gpu (emulated): waits for the next tick",
        "nightly  running on gpu-0 gpu (emulated)  reading, 37% of the device, yielded 0 times",
        "nightly  running on gpu-0 gpu (emulated)  12.0% done, 41.5 steps/s, 37% of the device, yielded 17 times",
        "nightly  the controller starts again",
        "nightly  preempted on gpu-0 gpu (emulated), 50% done: gave way",
        "nightly  running on gpu-0 gpu (emulated)  60.0% done, 40.0 steps/s, 37% of the device, yielded 20 times",
        "nightly  succeeded on gpu-0 gpu (emulated), 100% done: its work is done",
        "published release 2; `recpool release list` shows it",
    ]


async def test_for_programs_each_line_is_one_json_object_and_the_last_one_is_the_result(settings, capsys):
    assert await play(settings, Play(*RUN, SUCCEEDED), as_json=True) == 0
    told = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [each["event"] for each in told] == ["progress"] * 3 + ["trouble"] + ["progress"] * 3 + ["result"]
    shown = told[2]
    assert (shown["progress"], shown["steps_per_s"], shown["metered_milli"]) == (0.12, 41.5, 370)
    assert (shown["device"], shown["label"], shown["preemptions"]) == ("gpu-0", "gpu (emulated)", 17)
    assert (told[-1]["phase"], told[-1]["result"]) == ("succeeded", DONE)


@pytest.mark.parametrize("phase", ["failed", "cancelled", "parked"])
async def test_what_does_not_succeed_is_exit_code_1_with_the_reason(settings, capsys, phase):
    assert await play(settings, Play(RUN[1], stands(phase, reason="weights do not fit"))) == 1
    assert capsys.readouterr().out.splitlines()[-1].endswith(f"{phase} on gpu-0 gpu (emulated): weights do not fit")


@pytest.mark.parametrize(("on_stop", "phase"), [(OnStop.cancel, "cancelled"), (OnStop.detach, "queued")])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_job_that_is_stopped_cancels_its_workload_or_leaves_it_as_was_said(settings, on_stop, phase, number):
    controller = Play(RUN[1])
    asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), number)
    assert await asyncio.wait_for(play(settings, controller, on_stop=on_stop), 20) == 128 + number
    assert controller.known["nightly"].phase == phase


async def test_a_job_that_is_stopped_when_its_workload_has_just_ended_says_so(settings, capsys):
    controller = Play(RUN[1])

    def stop() -> None:
        controller.known["nightly"] = workload("nightly", phase="succeeded")
        os.kill(os.getpid(), signal.SIGTERM)

    asyncio.get_running_loop().call_later(0.05, stop)
    assert await asyncio.wait_for(play(settings, controller), 20) == 128 + signal.SIGTERM
    assert "not cancelled: nightly is succeeded" in capsys.readouterr().out


async def test_nothing_is_submitted_when_something_is_wrong(settings):
    controller = Play(SUCCEEDED)
    controller.shown = pool_with(workload("nightly", phase="running"))
    with pytest.raises(Conflict):
        await play(settings, controller)
    assert not controller.specs


async def test_a_workload_that_the_pool_has_forgotten_is_an_error(settings):
    with pytest.raises(NotFound, match="nightly.*known: none"):
        await play(settings, Play(RUN[1], pool_with()))


async def test_what_does_not_change_is_told_every_so_often_only():
    controller, told, now_s = Play(*[RUN[2]] * 100, SUCCEEDED), [], [0.0]
    controller.specs = [None]  # type: ignore[list-item]

    async def sleep(seconds: float) -> None:
        now_s[0] += seconds

    pool = PoolClient(lambda: FakeHandle(controller))
    await Follower(pool, "nightly", told.append, 10.0, lambda: now_s[0], sleep).to_its_end()
    assert now_s[0] == 100  # a look a second
    assert [type(each) for each in told] == [Moment] * 11  # at 0, 10, ... 90 s, and its end
    assert not any(isinstance(each, Trouble) for each in told)


def test_the_settings_are_those_that_the_service_runs_with(tmp_path, monkeypatch):
    monkeypatch.setenv("RECPOOL_HOME", str(tmp_path))
    assert finetune.service_settings(None).dataset == "ml-1m"  # no cluster of this home: the default profile
    run = tmp_path / "run"
    run.mkdir()
    (run / "token").write_text("5ecret")
    record = {"session": 1, "started_at_s": 0, "boot": "b", "address": "a", "dashboard": "d", "http": "h"}
    (run / "cluster.json").write_text(json.dumps({**record, "settings": "s"}))
    asked = []

    def arguments(record: Any, token: str) -> dict[str, Any]:
        asked.append((record.dashboard, token))
        return {"profile": "pool", "overrides": {"dataset": "shop"}}

    monkeypatch.setattr(finetune, "deployed_arguments", arguments)
    settings = finetune.service_settings(None)
    assert (settings.dataset, len(settings.pool.devices), settings.home) == ("shop", 2, tmp_path)
    assert asked == [("d", "5ecret")]
    assert finetune.service_settings("default").dataset == "ml-1m"


def test_a_cluster_that_is_gone_is_told_at_once_with_the_remedy(settings, monkeypatch):
    with socket.socket() as nobody:  # bound, and never listens
        nobody.bind(("127.0.0.1", 0))
        monkeypatch.setenv("RAY_ADDRESS", f"127.0.0.1:{nobody.getsockname()[1]}")
        with pytest.raises(Unavailable, match="recpool up --profile pool.*env.sh"):
            finetune.connect(settings)
