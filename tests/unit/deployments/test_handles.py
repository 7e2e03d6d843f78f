"""What one call of a stage does when replicas are late, fail, refuse or vanish, with handles that only act."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError

from configs.errors import InvalidRequest, NotFound, Overloaded, Unavailable
from configs.handle_settings import HandleSettings
from deployments import handles
from deployments.handles import RemoteStage

NEVER = object()
SETTINGS = HandleSettings(hedge_min_ms=5, hedge_max_ms=20, hang_ms=150, tries=3, retry_burst=1_000)
NO_HEDGE = SETTINGS.model_copy(update={"hedge_min_ms": 10_000.0, "hedge_max_ms": 10_000.0})
"""For tests of what happens without one, however slow the machine."""
LOST = ActorUnavailableError("gone", None)


class FakeHandle:
    """Replicas by name, each with what it does, call after call; the last of these it does for ever.

    An answer is returned, an exception raised, and `NEVER` waited for until the call is cancelled.
    """

    is_initialized = True

    def __init__(self, **replicas: Any):
        self._scripts = {name: list(acts) if isinstance(acts, list) else [acts] for name, acts in replicas.items()}
        self.asked: list[str] = []
        self.cancelled: list[str] = []

    def options(self, **kwargs: Any) -> FakeHandle:
        return self

    def remote(self, query: Any, timeout_s: float) -> FakeResponse:
        placing = handles.PLACING.get()
        assert placing is not None
        replica = placing.choose(list(self._scripts))
        if replica is None:
            return FakeResponse(self, "", handles.NotTaken("every replica was tried"))
        self.asked.append(replica)
        script = self._scripts[replica]
        return FakeResponse(self, replica, script.pop(0) if len(script) > 1 else script[0])


class FakeResponse:
    def __init__(self, handle: FakeHandle, replica: str, act: Any):
        self._handle = handle
        self._replica = replica
        self._act = act

    def __await__(self):
        return self._answer().__await__()

    async def _answer(self) -> Any:
        await asyncio.sleep(0)
        if self._act is NEVER:
            await asyncio.get_running_loop().create_future()
        if isinstance(self._act, BaseException):
            raise self._act
        return self._act

    def cancel(self) -> None:
        self._handle.cancelled.append(self._replica)


def stage_of(handle: FakeHandle, settings: HandleSettings = SETTINGS) -> RemoteStage:
    return RemoteStage("fine", handle, settings)  # type: ignore[arg-type]


async def test_an_answer_in_time_costs_one_call():
    handle = FakeHandle(a="A", b="B")
    assert await stage_of(handle, NO_HEDGE)("q", 5.0) == "A"
    assert handle.asked == ["a"]


async def test_a_late_call_is_given_to_a_second_replica_and_dropped_when_that_one_answers():
    handle = FakeHandle(a=NEVER, b="B")
    assert await stage_of(handle)("q", 5.0) == "B"
    assert handle.asked == ["a", "b"]
    await asyncio.sleep(0.01)
    assert handle.cancelled == ["a"]


BREAKS = [RuntimeError("engine"), LOST, ActorDiedError(), Overloaded("full"), Unavailable("no")]


@pytest.mark.parametrize("error", BREAKS)
async def test_a_call_that_fails_is_given_to_another_replica(error):
    handle = FakeHandle(a=error, b="B")
    assert await stage_of(handle)("q", 5.0) == "B"


@pytest.mark.parametrize("error", [InvalidRequest("k: too large", "k"), NotFound("no release 9")])
async def test_what_is_wrong_with_the_request_is_not_asked_twice_and_blames_nobody(error):
    handle = FakeHandle(a=error, b="B")
    stage = stage_of(handle, NO_HEDGE)
    with pytest.raises(type(error)):
        await stage("q", 5.0)
    assert handle.asked == ["a"]
    assert stage.health.suspects() == []


async def test_what_every_replica_raises_is_raised_as_itself():
    handle = FakeHandle(a=RuntimeError("first"), b=RuntimeError("second"))
    with pytest.raises(RuntimeError, match="first"):
        await stage_of(handle)("q", 5.0)
    assert handle.asked == ["a", "b"]


async def test_an_error_of_the_stage_tells_more_than_a_lost_replica():
    with pytest.raises(RuntimeError, match="engine"):
        await stage_of(FakeHandle(a=LOST, b=RuntimeError("engine")))("q", 5.0)


async def test_when_every_replica_is_lost_the_stage_is_unavailable_by_name():
    with pytest.raises(Unavailable, match="fine"):
        await stage_of(FakeHandle(a=LOST, b=LOST))("q", 5.0)


async def test_no_more_replicas_are_asked_than_tries_allow():
    handle = FakeHandle(**{name: RuntimeError("engine") for name in "abcde"})
    with pytest.raises(RuntimeError):
        await stage_of(handle)("q", 5.0)
    assert len(handle.asked) == len(set(handle.asked)) == SETTINGS.tries


async def test_a_call_that_nobody_answers_ends_at_its_deadline_and_is_dropped_everywhere():
    handle = FakeHandle(a=NEVER, b=NEVER)
    with pytest.raises(TimeoutError):
        await stage_of(handle)("q", 0.1)
    await asyncio.sleep(0.01)
    assert sorted(handle.cancelled) == ["a", "b"]


async def test_a_caller_that_leaves_takes_its_attempts_along():
    handle = FakeHandle(a=NEVER, b=NEVER)
    call = asyncio.create_task(stage_of(handle)("q", 5.0))
    await asyncio.sleep(0.1)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    await asyncio.sleep(0.01)
    assert sorted(handle.cancelled) == ["a", "b"]


async def test_extra_attempts_stay_within_the_budget():
    handle = FakeHandle(a=RuntimeError("engine"), b=RuntimeError("engine"))
    stage = stage_of(handle, SETTINGS.model_copy(update={"retry_burst": 4, "retry_share": 0.1}))
    for _ in range(50):
        with pytest.raises(RuntimeError):
            await stage("q", 5.0)
    assert 50 < len(handle.asked) <= 50 + 4 + 0.1 * 50


async def test_a_suspect_is_tried_with_a_copy_that_nobody_waits_for_and_comes_back():
    handle = FakeHandle(a=[LOST, NEVER, "A"], b="B")
    stage = stage_of(handle, SETTINGS.model_copy(update={"trial_ms": 1, "hang_ms": 10}))
    assert await stage("q", 5.0) == "B"
    assert stage.health.suspects() == ["a"]
    for _ in range(100):
        assert await stage("q", 5.0) in ("A", "B")
        await asyncio.sleep(0.005)
        if not stage.health.suspects():
            break
    assert stage.health.suspects() == []
    assert handle.cancelled == ["a"]  # the trial that was not answered


async def test_a_replica_that_drops_a_call_by_itself_is_no_reason_to_end_the_caller():
    assert await stage_of(FakeHandle(a=asyncio.CancelledError(), b="B"))("q", 5.0) == "B"


async def test_a_death_further_down_is_a_failure_of_the_replica_not_its_death():
    """The replica that passes it on is alive: one such error leaves it trusted, its own death does not."""
    for dead, suspects in (("other", []), ("mine", ["a"])):
        error = ActorDiedError()
        error.actor_id = dead
        handle = FakeHandle(a=error, b="B")
        stage = stage_of(handle)
        choose = handles.Placing.choose

        def chosen(placing, present, choose=choose):
            placing.actor_id = "mine"
            return choose(placing, present)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(handles.Placing, "choose", chosen)
            assert await stage("q", 5.0) == "B"
        assert stage.health.suspects() == suspects
