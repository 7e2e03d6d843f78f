"""The controller's methods from Python: its own errors arrive, and what Ray says of it is told in our words."""

from __future__ import annotations

import asyncio
import pickle
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, RayTaskError

from configs.errors import Conflict, DeadlineExceeded, InvalidRequest, NotFound, RecpoolError, Unavailable
from deployments.pool_client import NO_CONTROLLER, PoolClient, find_controller
from pool.workload import WorkloadSpec
from tests.unit.deployments.pools import FakeController, FakeHandle, workload

SPEC = WorkloadSpec(name="nightly", kind="finetune", model="fine")


def as_ray_tells(error: Exception) -> Exception:
    """An error that an actor raised, as its caller gets it: pickled, and wrapped into one of both kinds."""
    cause = pickle.loads(pickle.dumps(error))
    return RayTaskError("report", "Traceback ...", cause, "proc", 1, "127.0.0.2").as_instanceof_cause()


@pytest.fixture
def controller():
    return FakeController()


@pytest.fixture
def client(controller):
    return PoolClient(lambda: FakeHandle(controller, as_ray_tells))


async def test_each_method_is_the_controllers(client, controller):
    assert (await client.report()) is controller.shown
    assert (await client.submit(SPEC)).name == "nightly"
    assert [each.name for each in await client.workloads()] == ["nightly"]
    controller.known["nightly"] = workload("nightly", phase="running")
    assert (await client.preempt("nightly", "room")).reason == "room"
    assert (await client.resume("nightly")).phase == "queued"
    assert (await client.cancel("nightly", "no use")).phase == "cancelled"
    assert (await client.workload("nightly")).reason == "no use"
    controller.known["other"] = workload("other", phase="running")
    assert (await client.migrate("other", "cpu-0")).phase == "migrating"


async def test_what_the_controller_raises_is_raised_here_as_it_was(client):
    await client.submit(SPEC)
    with pytest.raises(Conflict) as taken:
        await client.submit(SPEC)
    assert taken.value.message == "workload nightly is live"
    with pytest.raises(NotFound, match="known: \\['nightly'\\]"):
        await client.workload("other")


@pytest.mark.parametrize("error", [InvalidRequest("min_milli: no", "min_milli"), Conflict("held"), NotFound("none")])
async def test_an_error_keeps_its_class_its_message_and_its_field(client, controller, error):
    controller.error = as_ray_tells(error)
    with pytest.raises(type(error)) as raised:
        await client.report()
    assert type(raised.value) is type(error)
    assert raised.value.args == error.args


async def test_a_bug_of_the_controller_is_no_error_of_the_pool(client, controller):
    controller.error = as_ray_tells(ZeroDivisionError("x"))
    with pytest.raises(ZeroDivisionError) as raised:
        await client.report()
    assert not isinstance(raised.value, RecpoolError)


async def test_a_controller_that_is_not_there_is_looked_for_at_every_call():
    looked = []

    def find() -> Any:
        looked.append(1)
        raise Unavailable(NO_CONTROLLER)

    client = PoolClient(find)
    for _ in range(2):
        with pytest.raises(Unavailable, match="recpool up"):
            await client.report()
    assert len(looked) == 2


@pytest.mark.parametrize("lost", [ActorDiedError(), ActorUnavailableError("unavailable", None)])
async def test_after_one_was_lost_the_next_is_found(controller, lost):
    found = []

    def find() -> Any:
        found.append(1)
        return FakeHandle(controller)

    client = PoolClient(find)
    await client.report()
    controller.error = lost
    with pytest.raises(Unavailable, match="recpool pool status"):
        await client.report()
    controller.error = None
    await client.report()
    assert len(found) == 2


class Hanging:
    """A handle whose calls never end."""

    def __getattr__(self, method: str) -> Any:
        return self

    async def remote(self, *_: Any) -> None:
        await asyncio.Event().wait()


@pytest.mark.parametrize("ask", [lambda client: client.report(), lambda client: client.submit(SPEC)])
async def test_a_call_that_takes_too_long_is_given_up(ask):
    client = PoolClient(Hanging, read_timeout_s=0.01, change_timeout_s=0.01)
    with pytest.raises(DeadlineExceeded, match="may still do"):
        await ask(client)


async def test_a_caller_that_leaves_is_not_told_of_a_time_limit():
    call = asyncio.create_task(PoolClient(Hanging).report())
    await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


def test_without_a_cluster_none_is_started():
    with pytest.raises(Unavailable, match="ray.init"):
        find_controller()
