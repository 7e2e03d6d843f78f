"""A rollout from its first check to its end, over a service that is a few fields."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from pydantic import ValidationError

from configs.errors import ArtifactError, Conflict, NotFound, Unavailable
from configs.settings import build_settings
from deployments.releases.reporter import Reporter
from deployments.releases.supervisor import INTERRUPTED, Supervisor
from pool.repository import CHALLENGER, CHAMPION, SHADOW, ReleaseRepository, open_releases
from serving.experiments.roles import DivisionReport
from serving.experiments.rollout import RolloutPlan, Seen, Step, decide, gate_fault
from serving.experiments.spec import Traffic
from serving.experiments.tally import Tally

ABOUT = {"dataset": "tiny", "recipe": "test", "items": 1, "users": 1, "objectives": ("like",)}
GOOD = {"cascade": {"recall@10": 0.20}, "auc": {"fine": 0.80}, "calibration_error": {"fine": 0.01}}
LOOK_S = 0.002


class FakeService:
    """Takes what it is told; at each choice it calls ``then`` with the traffic, where a test lets replicas report."""

    def __init__(self) -> None:
        self.chosen: list[dict[str, Any]] = [{"version": "1"}]
        self.fails: Exception | None = None
        self.then: Callable[[Traffic], None] = lambda traffic: None

    def choice(self) -> dict[str, Any]:
        return self.chosen[-1]

    def choose(self, choice: dict[str, Any]) -> None:
        if self.fails:
            raise self.fails
        self.chosen.append(dict(choice))
        self.then(Traffic.model_validate(choice.get("traffic") or {}))


class FakeChecks:
    def __init__(self, **figures: Any):
        self.figures = {"releases": {"1": GOOD, "2": {**GOOD, **figures}}}
        self.wrong: Exception | None = None

    async def evaluate(self, versions: tuple[str, ...]) -> dict[str, Any]:
        return self.figures

    async def warm_up(self, version: str) -> dict[str, Any]:
        if self.wrong:
            raise self.wrong
        return {"checked": 9}


def answers(count: int, took_ms: float = 5.0, errors: int = 0, **bad: bool) -> Tally:
    tally = Tally()
    for _ in range(count):
        tally.answer(took_ms, bad.get("empty", False), bad.get("broken", False))
    for _ in range(errors):
        tally.error()
    return tally


@pytest.fixture
def settings(tmp_path):
    return build_settings({"home": tmp_path, "dataset": "tiny"})


@pytest.fixture
def repository(settings) -> ReleaseRepository:
    repository = open_releases(settings)
    for text in ("first", "second"):
        with repository.draft(dict(ABOUT)) as draft:
            (draft.folder / "a.txt").write_text(text)
    repository.point(CHAMPION, "1")
    return repository


@pytest.fixture
def service() -> FakeService:
    return FakeService()


PLAN = RolloutPlan(version="2", canary=(0.1, 0.5), hold_s=0.01, least_requests=10, patience_s=5)


async def rolled_out(settings, service, checks, release: Callable[[], Tally], plan: RolloutPlan = PLAN):
    """The supervisor when it is done; at each division one replica reports a good champion and this release."""
    supervisor = Supervisor(settings, service, checks, LOOK_S)
    loop = asyncio.get_running_loop()

    def told(traffic: Traffic) -> None:
        role = SHADOW if traffic.shadow else CHALLENGER if traffic.challenger else None
        tallies = {CHAMPION: answers(300), **({role: release()} if role else {})}
        report = DivisionReport("r1", traffic.model_dump(mode="json"), tallies)
        asyncio.run_coroutine_threadsafe(supervisor.report(report), loop)

    service.then = told
    await supervisor.begin(plan)
    async with asyncio.timeout(20):
        await supervisor._task
    return supervisor


def traffics(service: FakeService) -> list[Traffic]:
    return [Traffic.model_validate(each.get("traffic") or {}) for each in service.chosen]


async def test_a_good_release_goes_through_all_stages_and_serves(settings, repository, service):
    view = await (await rolled_out(settings, service, FakeChecks(), lambda: answers(50))).view()
    assert view.phase == "promoted"
    shadow, *canary = traffics(service)[1:4]
    assert (shadow.shadow.version, shadow.challenger) == ("2", None)
    assert [(each.challenger.version, each.challenger.share, each.challenger.salt) for each in canary] == [
        ("2", 0.1, "2"), ("2", 0.5, "2")
    ]  # fmt: skip
    assert service.chosen[-1] == {"version": "2"}
    assert repository.aliases() == {CHAMPION: "2"}
    assert [each.event for each in repository.history("2")] == [
        "rollout begun", "passed the gate", "warmed up", "shadow at 10.0%", "shadow at 10.0% done",
        "canary at 10.0%", "canary at 10.0% done", "canary at 50.0%", "canary at 50.0% done", "promoted",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("figures", "said"),
    [
        ({"cascade": {"recall@10": 0.1}}, "recall@10 0.1000, the champion 0.2000"),
        ({"cascade": {"recall@10": float("nan")}}, "recall@10 nan"),
        ({"auc": {"fine": 0.7}}, "AUC 0.7000, the champion 0.8000; allowed 0.01 less"),
        ({"auc": {}}, "AUC missing"),
        ({"calibration_error": {"fine": 0.2}}, "calibration error 0.2000"),
    ],
)
async def test_a_release_that_is_worse_offline_is_stopped_at_the_gate(settings, repository, service, figures, said):
    view = await (await rolled_out(settings, service, FakeChecks(**figures), lambda: answers(50))).view()
    assert view.phase == "stopped" and said in view.reason
    assert len(service.chosen) == 1 and repository.aliases() == {CHAMPION: "1"}
    last = repository.history("2")[-1]
    assert last.event == "stopped" and said in last.reason
    assert last.figures["releases"]["1"] == GOOD


async def test_a_release_that_makes_no_sense_is_stopped_at_warm_up(settings, repository, service):
    checks = FakeChecks()
    checks.wrong = ArtifactError("release 2: the answer for user 'u' is empty")
    view = await (await rolled_out(settings, service, checks, lambda: answers(50))).view()
    assert view.phase == "stopped" and "warm-up" in view.reason and "is empty" in view.reason


@pytest.mark.parametrize("begin_with", ["shadow", "canary"])
@pytest.mark.parametrize(
    ("release", "said"),
    [
        (lambda: answers(20, took_ms=300), "later than 100 ms"),
        (lambda: answers(20, empty=True), "empty: 20 of 20"),
        (lambda: answers(20, broken=True), "broken: 20 of 20"),
        (lambda: answers(0, errors=9), "errors: 9 of 9"),
    ],
)
async def test_one_that_is_bad_under_traffic_is_rolled_back_with_the_reason(
    settings, repository, service, begin_with, release, said
):
    plan = PLAN.model_copy(update={"begin_with": begin_with})
    supervisor = await rolled_out(settings, service, FakeChecks(), release, plan)
    view = await supervisor.view()
    assert view.phase == "rolled_back" and said in view.reason
    assert service.chosen[-1] == {"version": "1"} and repository.aliases() == {CHAMPION: "1"}
    last = repository.history("2")[-1]
    assert last.event == "rolled back" and said in last.reason
    # A replica that Serve has not told yet hears it with its next report; another division is left alone.
    divided = traffics(service)[-2].model_dump(mode="json")
    assert said in await supervisor.report(DivisionReport("r2", divided, {}))
    assert await supervisor.report(DivisionReport("r2", {}, {})) == ""


async def test_what_else_is_divided_stays_as_it_was(settings, repository, service):
    mine = {"name": "e", "arms": [{"name": "a", "share": 1.0}]}
    service.chosen = [{"version": "1", "traffic": {"experiments": [mine]}}]
    view = await (await rolled_out(settings, service, FakeChecks(), lambda: answers(50))).view()
    assert view.phase == "promoted"
    assert [each.experiments[0].name for each in traffics(service)] == ["e"] * len(service.chosen)


@pytest.mark.parametrize(
    ("choice", "said"),
    [
        ({"version": "7"}, "serves release 7 by its user_config"),
        ({"version": "1", "traffic": {"shadow": {"version": "2"}}}, "divided already"),
    ],
)
async def test_a_service_that_somebody_else_is_at_is_left_alone(settings, repository, service, choice, said):
    service.chosen = [choice]
    view = await (await rolled_out(settings, service, FakeChecks(), lambda: answers(50))).view()
    assert view.phase == "stopped" and said in view.reason
    assert service.chosen == [choice] and repository.aliases() == {CHAMPION: "1"}


async def test_too_little_traffic_ends_it(settings, repository, service):
    plan = PLAN.model_copy(update={"begin_with": "canary", "patience_s": 0.05})
    view = await (await rolled_out(settings, service, FakeChecks(), lambda: answers(3), plan)).view()
    assert view.phase == "rolled_back" and "too little traffic" in view.reason


async def test_a_service_that_cannot_follow_keeps_its_champion(settings, repository, service):
    service.fails = Unavailable("the cluster does not answer")
    plan = PLAN.model_copy(update={"begin_with": "canary"})
    view = await (await rolled_out(settings, service, FakeChecks(), lambda: answers(50), plan)).view()
    assert view.phase == "rolled_back" and "does not answer" in view.reason and "Serve was not told" in view.reason
    assert repository.aliases() == {CHAMPION: "1"}


async def test_cancelling_gives_everything_back(settings, repository, service):
    supervisor = Supervisor(settings, service, FakeChecks(), LOOK_S)
    await supervisor.begin(RolloutPlan(version="2", begin_with="canary"))
    await asyncio.sleep(10 * LOOK_S)
    await supervisor.cancel("not today")
    async with asyncio.timeout(20):
        await supervisor._task
    view = await supervisor.view()
    assert (view.phase, view.reason) == ("rolled_back", "not today")
    assert repository.aliases() == {CHAMPION: "1"} and service.chosen[-1] == {"version": "1"}
    with pytest.raises(Conflict, match="no rollout is under way"):
        await supervisor.cancel("again")


async def test_one_rollout_at_a_time_and_the_same_one_twice_is_one(settings, repository, service):
    supervisor = Supervisor(settings, service, FakeChecks(), LOOK_S)
    first = await supervisor.begin(PLAN)
    assert (await supervisor.begin(PLAN)).version == first.version
    with pytest.raises(Conflict, match="release 2 is under way"):
        await supervisor.begin(RolloutPlan(version="1"))
    await supervisor.cancel("enough")
    await supervisor._task


async def test_what_cannot_be_rolled_out_is_refused_before_anything_happens(settings, repository, service):
    supervisor = Supervisor(settings, service, FakeChecks(), LOOK_S)
    with pytest.raises(Conflict, match="champion already"):
        await supervisor.begin(RolloutPlan(version="1"))
    with pytest.raises(NotFound, match="no release '7'"):
        await supervisor.begin(RolloutPlan(version="7"))
    (repository.path("2") / "a.txt").write_text("SECOND")
    with pytest.raises(ArtifactError, match=r"a\.txt"):
        await supervisor.begin(RolloutPlan(version="2"))
    assert len(repository.history()) == 1 and len(service.chosen) == 1


async def test_a_promotion_by_somebody_else_is_not_undone(settings, repository, service):
    with repository.draft(dict(ABOUT)) as draft:
        (draft.folder / "a.txt").write_text("third")
    plan = PLAN.model_copy(update={"begin_with": "canary"})

    def meanwhile() -> Tally:
        if repository.champion() == "1":
            repository.point(CHAMPION, "3")
        return answers(50)

    view = await (await rolled_out(settings, service, FakeChecks(), meanwhile, plan)).view()
    assert view.phase == "rolled_back" and "champion is 3 by now" in view.reason
    assert service.chosen[-1] == {"version": "3"} and repository.aliases() == {CHAMPION: "3"}


async def test_a_supervisor_that_starts_again_ends_what_nobody_watched(settings, repository, service):
    repository.note("rollout begun", "2", "")
    repository.point(CHALLENGER, "2")
    service.chosen = [{"version": "1", "traffic": {"challenger": {"version": "2", "share": 0.5}}}]
    supervisor = Supervisor(settings, service, FakeChecks(), LOOK_S)
    await supervisor.report(DivisionReport("r1", {}, {}))
    await supervisor._recovery
    assert service.chosen[-1] == {"version": "1"} and repository.aliases() == {CHAMPION: "1"}
    assert repository.history("2")[-1].reason == INTERRUPTED


async def test_a_division_by_hand_is_left_alone(settings, repository, service):
    repository.point(CHALLENGER, "2")
    supervisor = Supervisor(settings, service, FakeChecks(), LOOK_S)
    await supervisor.report(DivisionReport("r1", {}, {}))
    await supervisor._recovery
    assert len(service.chosen) == 1 and repository.aliases() == {CHAMPION: "1", CHALLENGER: "2"}


def seen(**release: Any) -> Seen:
    return Seen(2, {CHAMPION: answers(300), CHALLENGER: answers(**release)})


def test_a_step_waits_for_its_time_and_for_enough_answers():
    plan, step = RolloutPlan(version="2", hold_s=30, least_requests=50), Step("canary", 0.1)
    limits = build_settings({"home": "nowhere"}).releases.limits
    assert decide(plan, step, seen(count=100), limits, 29).what == "wait"
    assert decide(plan, step, seen(count=49), limits, 31).what == "wait"
    assert decide(plan, step, seen(count=50), limits, 30).what == "go_on"
    assert decide(plan, step, Seen(1, {}, missing="no memory"), limits, 1).reason.endswith("no memory")
    assert decide(plan, step, Seen(1, {}, stopped="slow"), limits, 1).what == "roll_back"


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"version": "../1"}, "version"),
        ({"version": "2", "canary": [0.5, 0.1]}, "shares must rise"),
        ({"version": "2", "canary": [0.5, 1.5]}, "less than or equal to 1"),
        ({"version": "2", "begin_with": "middle"}, "begin_with"),
        ({"version": "2", "hold": 3}, "hold"),
    ],
)
def test_a_plan_that_cannot_be_is_refused_by_its_field(fields, said):
    with pytest.raises(ValidationError, match=said):
        RolloutPlan.model_validate(fields)


def test_a_gate_without_values_looks_at_recall_alone():
    figures = {"releases": {each: {"cascade": {"recall@10": 0.2}, "auc": {}, "calibration_error": {}} for each in "12"}}
    assert gate_fault("1", "2", figures, build_settings({"home": "nowhere"}).releases.gate) is None


class FakeDivision:
    """As much of a division as a reporter looks at."""

    compares = True

    def __init__(self, release: Tally):
        self.tallies = {CHAMPION: answers(100), CHALLENGER: release}
        self.sides = {CHALLENGER: type("Side", (), {"live": type("Live", (), {"version": "2"})})}
        self.stopped = ""

    def stop(self, reason: str) -> None:
        self.stopped = self.stopped or reason

    def report(self, replica: str) -> DivisionReport:
        return DivisionReport(replica, {}, self.tallies, self.stopped)


class FakeRollouts:
    def __init__(self, answer: str | Exception = ""):
        self.answer, self.reports = answer, []

    async def report(self, report: DivisionReport) -> str:
        self.reports.append(report)
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


@pytest.mark.parametrize(
    ("release", "answer", "stopped"),
    [
        (answers(20), "", ""),
        (answers(20, broken=True), "", "broken: 20 of 20"),
        (answers(20, broken=True), Unavailable("nobody"), "broken: 20 of 20"),
        (answers(20), "empty elsewhere", "empty elsewhere"),
    ],
)
async def test_a_replica_stops_a_bad_release_by_itself_or_when_it_is_told(settings, release, answer, stopped):
    division, rollouts = FakeDivision(release), FakeRollouts(answer)
    service = type("Service", (), {"division": division})
    await Reporter(service, settings.releases.limits, rollouts, lambda: "r1").look()  # type: ignore[arg-type]
    assert division.stopped.startswith(stopped) and bool(division.stopped) == bool(stopped)
    assert rollouts.reports[0].replica == "r1"
