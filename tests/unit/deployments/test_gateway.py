"""The gateway keeps serving what it serves, and its health is that of the request path."""

from __future__ import annotations

import asyncio

import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from configs.errors import ArtifactError, ConfigError, Unavailable
from configs.plan_settings import GatewayPlan
from deployments.choice import chosen_version
from deployments.gateway import OWN_CALLS, PATIENCE, Gateway, Probe
from serving.experiments.spec import Traffic

Plain = Gateway.__mro__[1]  # the class below Serve's wrapper, which only runs inside a replica


HUNG, FAILED, HURRIED = ("cascade", "timeout"), ("fine", "failed"), ("fine", "skipped_for_deadline")


class Bare(Plain):
    """A gateway put together by hand. Serve awaits ``__del__``; nobody does so here."""

    def __del__(self) -> None:
        pass


class FakeService:
    """Loads any version but "damaged" (a release that is wrong) and "bug" (a program that is)."""

    def __init__(self) -> None:
        self.version: str | None = None
        self.warm = False

    @property
    def ready(self) -> bool:
        return self.version is not None

    async def load(self, version: str | None, warm: bool = False) -> None:
        if version == "damaged":
            raise ArtifactError("release damaged: encoder.json differs from its checksum")
        if version == "bug":
            raise KeyError("encoder")
        self.version, self.warm = version or "champion", warm

    async def divide(self, traffic: Traffic, warm: bool = False) -> None:
        self.traffic = traffic


class FakeCalls:
    """Counts the requests that the gateway asks itself; raises in the second of standing by."""

    def __init__(self) -> None:
        self.asked: list[int] = []

    async def __call__(self, count: int = 1) -> None:
        self.asked.append(count)
        if len(self.asked) == 3:
            raise RuntimeError("the path broke")


class FakeMember:
    def __init__(self) -> None:
        self.started, self.stands_by = 0, False

    def start(self) -> None:
        self.started += 1


class FakeApp:
    """Answers one request after the other with the next status, or with the next thing a 200 did without."""

    def __init__(self, *answers: int | tuple[str, str] | None):
        self._answers = list(answers)
        self.http = FastAPI()
        self.http.post("/v1/recommend")(self.recommend)

    async def recommend(self) -> JSONResponse:
        answer = self._answers.pop(0)
        if isinstance(answer, int):
            return JSONResponse({}, answer)
        return JSONResponse({"degraded": [dict(zip(("stage", "reason"), answer, strict=True))] if answer else []})


async def healthy(*answers: int | tuple[str, str] | None, stages: tuple[str, ...] = ("coarse", "fine")) -> list[bool]:
    """What a probe of these answers says, one after the other."""
    probe, said = Probe(FakeApp(*answers).http, stages), []
    for _ in answers:
        try:
            await probe()
            said.append(True)
        except Unavailable:
            said.append(False)
    return said


@pytest.fixture
def gateway():
    gateway = Bare.__new__(Bare)
    gateway._service, gateway._champion = FakeService(), None
    gateway._probe = Probe(FakeApp(None).http, ())
    gateway._plan, gateway._is_pooled, gateway._warms_up = GatewayPlan(keep_warm_s=0.001), True, True
    gateway._own_calls, gateway._member, gateway._keeping_warm = FakeCalls(), FakeMember(), None
    gateway._load, gateway._reporter = FakeMember(), FakeMember()
    return gateway


async def test_without_a_choice_the_champion_is_loaded(gateway):
    await gateway.reconfigure({"version": None})
    assert gateway._service.version == "champion"


async def test_without_a_choice_a_replica_serves_what_the_application_was_built_with(gateway):
    gateway._champion = "3"
    await gateway.reconfigure({"version": None})
    assert gateway._service.version == "3"


async def test_a_version_may_be_written_as_a_number(gateway):
    await gateway.reconfigure({"version": 2})
    assert gateway._service.version == "2"


@pytest.mark.parametrize("wrong", [{"version": ["2"]}, {"version": True}, {"version": ""}, {"release": "2"}])
async def test_what_chooses_no_release_leaves_the_old_one_serving(gateway, wrong):
    with pytest.raises(ConfigError, match="user_config"):
        chosen_version(wrong, None)
    await gateway.reconfigure({"version": "1"})
    await gateway.reconfigure(wrong)
    assert gateway._service.version == "1"


@pytest.mark.parametrize("wrong", ["damaged", "bug"])
async def test_a_release_that_fails_to_load_leaves_the_old_one_serving(gateway, wrong):
    await gateway.reconfigure({"version": "1"})
    await gateway.reconfigure({"version": wrong})
    assert gateway._service.version == "1"


async def test_a_gateway_whose_first_release_is_damaged_starts_and_is_not_ready(gateway):
    await gateway.reconfigure({"version": "damaged"})
    assert not gateway._service.ready
    await gateway.check_health()


async def test_it_warms_up_first_and_then_claims_its_slice_once(gateway):
    await gateway.reconfigure({"version": "1"})
    await gateway.reconfigure({"version": "2"})
    assert gateway._service.warm
    assert gateway._own_calls.asked == [OWN_CALLS]
    assert gateway._member.started == 1


async def test_without_a_release_it_claims_nothing(gateway):
    await gateway.reconfigure({"version": "damaged"})
    assert gateway._member.started == 0
    await gateway.reconfigure({"version": "1"})
    assert gateway._member.started == 1


async def test_a_gateway_that_is_not_to_warm_up_does_not(gateway):
    gateway._warms_up, gateway._member.stands_by = False, True
    await gateway.reconfigure({"version": "1"})
    await asyncio.sleep(0.02)
    assert not gateway._service.warm and gateway._own_calls.asked == []


async def test_it_asks_itself_while_it_stands_by_and_only_then(gateway):
    await gateway.reconfigure({"version": "1"})
    await asyncio.sleep(0.02)
    assert gateway._own_calls.asked == [OWN_CALLS]
    gateway._member.stands_by = True
    async with asyncio.timeout(10):
        while len(gateway._own_calls.asked) < 5:  # one of them raised
            await asyncio.sleep(0.001)
    gateway._keeping_warm.cancel()


async def test_a_bug_at_the_first_load_is_raised_for_serve_to_report(gateway):
    with pytest.raises(KeyError):
        await gateway.reconfigure({"version": "bug"})


async def test_an_answer_or_a_refusal_is_a_sign_of_life():
    assert await healthy(None, 429, 503) == [True, True, True]


@pytest.mark.parametrize("status", [500, 504])
async def test_a_broken_request_path_is_unhealthy_at_once(gateway, status):
    gateway._probe = Probe(FakeApp(status).http, ())
    await gateway.reconfigure({"version": "1"})
    with pytest.raises(Unavailable, match=str(status)):
        await gateway.check_health()


@pytest.mark.parametrize("missing", [HUNG, FAILED, ("coarse", "timeout")])
async def test_a_funnel_that_stays_away_is_unhealthy_after_some_probes_in_a_row(missing):
    assert PATIENCE == 3
    assert await healthy(None, *[missing] * 4) == [True, True, True, False, False]


async def test_a_good_answer_between_bad_ones_starts_the_count_again():
    assert all(await healthy(None, HUNG, FAILED, None, HUNG, FAILED))


async def test_what_a_deadline_or_a_request_does_without_is_healthy():
    assert all(await healthy(None, *[HURRIED, ("features", "user_unknown"), ("recall.ann", "timeout")] * 3))


async def test_a_stage_of_another_process_is_not_this_replicas_fault():
    assert all(await healthy(None, *[FAILED] * 5, stages=("recall",)))


async def test_a_funnel_that_never_worked_is_not_replaced_again_and_again():
    assert all(await healthy(*[FAILED] * 5))
