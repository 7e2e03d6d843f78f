"""A stage behind Ray Serve handles behaves as a local one, and no single replica of it can break a call.

Real processes are killed, stopped and stalled here. Bounds are generous: what is tested is that a call is
answered by another replica instead of waiting for its deadline, not how fast.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import pytest_asyncio
from ray import cloudpickle, serve
from ray.serve.config import RequestRouterConfig
from ray.serve.handle import DeploymentHandle

from configs.errors import ArtifactError, NotFound, Unavailable
from configs.handle_settings import HandleSettings
from deployments.handles import RemoteStage
from deployments.routing import StageRouter
from serving.types import Candidates

# Workers cannot import a test module by name.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

pytestmark = pytest.mark.asyncio(loop_scope="module")

PATIENT_S = 20.0
PROMPT_S = 10.0
"""Far above what failing over takes on a busy machine, and below the patience of the calls."""
STALL_S = 3.0
BUDGET = HandleSettings(retry_burst=1_000)
"""Enough extra attempts that no test depends on how many the ones before it used up."""


class Scripted:
    """Does what the query says, or what a file named after its process says."""

    def __init__(self, folder: str) -> None:
        self.folder = Path(folder)
        self.cancelled = 0

    async def run(self, query, timeout_s):
        fault = self._fault()
        if fault == "stall":
            (self.folder / str(os.getpid())).unlink()
            time.sleep(STALL_S)  # noqa: ASYNC251 - a loop that stands still is what this is for
        elif fault == "raise":
            raise RuntimeError("the engine broke")
        elif fault == "hang":
            await asyncio.sleep(60)
        if query == "late":
            (self.folder / f"late-{os.getpid()}").touch()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if query == "wrong":
            raise ArtifactError("release 7: popular.npy is missing", "popular.npy")
        if query == "unknown":
            raise NotFound(f"no release 9 in {os.getpid()}")
        if query == "die":
            os._exit(1)
        if query == "pid":
            return os.getpid()
        return self.cancelled if query == "cancelled" else query

    def _fault(self) -> str:
        file = self.folder / str(os.getpid())
        return file.read_text() if file.is_file() else ""


def deploy(name: str, replicas: int, folder: Path):
    deployment = serve.deployment(
        name="fine",
        num_replicas=replicas,
        max_ongoing_requests=100,
        graceful_shutdown_wait_loop_s=0.1,
        ray_actor_options={"num_cpus": 0.1},
        request_router_config=RequestRouterConfig(request_router_class=StageRouter),
    )(Scripted)
    return serve.run(deployment.bind(str(folder)), name=name, route_prefix=f"/{name}")


@pytest.fixture(scope="module")
def faults(tmp_path_factory) -> Path:
    """A file here named after a process, holding stall, raise or hang, breaks that replica."""
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="module")
def pair_handle(serve_address, faults):
    yield deploy("pair", 2, faults)
    serve.delete("pair")


@pytest_asyncio.fixture(loop_scope="module")
async def pair(pair_handle, faults):
    """A caller of two replicas, both there and trusted when the test starts."""
    handle = DeploymentHandle("fine", "pair")  # its router belongs to the loop of these tests
    stage = RemoteStage("fine", handle, BUDGET)
    await both(stage)
    yield stage
    for file in faults.iterdir():
        file.unlink()
    await handle.shutdown_async()


@pytest.fixture(scope="module")
def single_handle(serve_address, faults):
    yield deploy("single", 1, faults)
    serve.delete("single")


@pytest_asyncio.fixture(loop_scope="module")
async def single(single_handle):
    handle = DeploymentHandle("fine", "single")
    yield RemoteStage("fine", handle, BUDGET)
    await handle.shutdown_async()


async def both(stage: RemoteStage) -> set[int]:
    """Process ids of two replicas that answer and are trusted."""
    pids: set[int] = set()
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        pids = set(await asyncio.gather(*(stage("pid", PATIENT_S) for _ in range(4))))
        if len(pids) == 2 and not stage.health.suspects():
            return pids
        await asyncio.sleep(0.1)
    pytest.fail(f"only {pids} answer; suspects: {stage.health.suspects()}")


async def answers_of(stage: RemoteStage, calls: int = 10) -> list[int]:
    """Who answers calls made side by side, each of which must be prompt."""
    started = time.monotonic()
    pids = await asyncio.gather(*(stage("pid", PATIENT_S) for _ in range(calls)))
    assert time.monotonic() - started < PROMPT_S
    return pids


async def test_arrays_come_back_as_they_were_sent(pair):
    items = np.arange(12, dtype=np.int32).reshape(3, 4)
    sent = Candidates(items, items.astype(np.float32), items.astype(np.uint8), (("fresh", "timeout"),))
    back = await pair(sent, PATIENT_S)
    for name in ("items", "scores", "sources"):
        assert getattr(back, name).dtype == getattr(sent, name).dtype
        assert np.array_equal(getattr(back, name), getattr(sent, name))
    assert back.failed == sent.failed


async def test_calls_are_spread_over_the_replicas(pair):
    pids = await answers_of(pair, 20)
    assert len(set(pids)) == 2


async def test_a_late_answer_is_given_up_in_time_and_its_work_is_dropped(single):
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        await single("late", 0.3)
    assert time.monotonic() - started < 5
    for _ in range(50):
        if await single("cancelled", PATIENT_S):
            break
        await asyncio.sleep(0.1)
    assert await single("cancelled", PATIENT_S) >= 1


async def test_when_the_caller_leaves_the_work_is_dropped_on_every_replica_and_the_next_call_succeeds(pair, faults):
    before, replicas = sum(await counts(pair)), await both(pair)
    call = asyncio.create_task(pair("late", PATIENT_S))
    while not all((faults / f"late-{pid}").exists() for pid in replicas):  # until it is hedged
        assert not call.done()
        await asyncio.sleep(0.02)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    for _ in range(50):
        if sum(await counts(pair)) >= before + 2:
            break
        await asyncio.sleep(0.1)
    assert sum(await counts(pair)) == before + 2
    assert await pair("again", PATIENT_S) == "again"


async def counts(stage: RemoteStage) -> list[int]:
    """How many calls each replica dropped; calls side by side go to one each."""
    await both(stage)
    return await asyncio.gather(stage("cancelled", PATIENT_S), stage("cancelled", PATIENT_S))


async def test_an_error_of_the_stage_arrives_as_itself(single, pair):
    for stage in (single, pair):
        with pytest.raises(ArtifactError) as raised:
            await stage("wrong", PATIENT_S)
        assert "popular.npy is missing" in raised.value.message


async def test_what_is_wrong_with_the_request_is_told_once_and_blames_no_replica(pair):
    for _ in range(10):
        with pytest.raises(NotFound):
            await pair("unknown", PATIENT_S)
    assert pair.health.suspects() == []


async def test_the_only_replica_that_dies_is_unavailable_and_the_next_one_answers(single):
    with pytest.raises(Unavailable, match="fine"):
        await single("die", PATIENT_S)
    for _ in range(150):
        try:
            assert await single("again", PATIENT_S) == "again"
            return
        except (Unavailable, TimeoutError):
            await asyncio.sleep(0.2)
    pytest.fail("no replica came back")


async def test_a_killed_replica_is_left_out_at_once_and_its_calls_are_answered_by_the_other(pair, faults):
    victim, other = await both(pair)
    (faults / str(victim)).write_text("hang")
    calls = [asyncio.create_task(pair("pid", PATIENT_S)) for _ in range(4)]
    await asyncio.sleep(0.005)
    started = time.monotonic()
    os.kill(victim, signal.SIGKILL)
    assert set(await asyncio.gather(*calls)) == {other}
    assert time.monotonic() - started < PROMPT_S
    for _ in range(5):
        assert set(await answers_of(pair)) <= {other}


async def test_a_controller_that_knows_of_nobody_is_not_believed_while_there_was_somebody(pair):
    """Case 23: one that comes back says so before it has found its replicas."""
    pids = await both(pair)
    router = pair._handle._router._asyncio_router.request_router
    router.update_replicas([])
    assert set(await answers_of(pair)) == pids


async def test_a_stopped_replica_is_left_out_and_comes_back_by_itself(pair):
    victim, other = await both(pair)
    os.kill(victim, signal.SIGSTOP)
    try:
        for _ in range(5):
            assert set(await answers_of(pair)) == {other}
        assert len(pair.health.suspects()) == 1
    finally:
        os.kill(victim, signal.SIGCONT)
    assert await both(pair) == {victim, other}


async def test_a_replica_whose_loop_stands_still_is_left_out_and_comes_back(pair, faults):
    victim, other = await both(pair)
    (faults / str(victim)).write_text("stall")
    assert set(await answers_of(pair)) == {other}
    assert set(await answers_of(pair)) == {other}
    assert await both(pair) == {victim, other}


async def test_a_replica_whose_engine_raises_costs_no_caller_its_answer(pair, faults):
    victim, other = await both(pair)
    (faults / str(victim)).write_text("raise")
    for _ in range(5):
        assert set(await answers_of(pair)) == {other}
    assert len(pair.health.suspects()) == 1
    (faults / str(victim)).unlink()
    assert await both(pair) == {victim, other}


async def test_a_replica_that_is_alive_but_answers_no_call_is_suspected(pair, faults):
    victim, other = await both(pair)
    (faults / str(victim)).write_text("hang")
    for _ in range(5):
        assert set(await answers_of(pair)) == {other}
    assert len(pair.health.suspects()) == 1
    status = serve.status().applications["pair"].deployments["fine"]
    assert status.replica_states == {"RUNNING": 2}  # Serve, which only pings, sees nothing wrong


async def test_a_caller_that_itself_stood_still_suspects_nobody(pair):
    calls = [asyncio.create_task(pair("pid", PATIENT_S)) for _ in range(4)]
    await asyncio.sleep(0)
    time.sleep(0.5)  # noqa: ASYNC251 - the caller's own loop stands still
    await asyncio.gather(*calls)
    assert pair.health.suspects() == []
