"""A stage behind a Ray Serve handle behaves as a local one, and fails as the cascade expects."""

from __future__ import annotations

import asyncio
import sys
import time

import numpy as np
import pytest
from ray import cloudpickle, serve

from configs.errors import ArtifactError, Unavailable
from deployments.handles import RemoteStage
from serving.types import Candidates

# Workers cannot import a test module by name.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


@serve.deployment(name="fine", max_ongoing_requests=8, ray_actor_options={"num_cpus": 0.1})
class Scripted:
    """Does what the query says."""

    def __init__(self) -> None:
        self.cancelled = 0

    async def run(self, query, timeout_s):
        if query == "late":
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                self.cancelled += 1
                raise
        if query == "wrong":
            raise ArtifactError("release 7: popular.npy is missing", "popular.npy")
        if query == "die":
            import os

            os._exit(1)
        if query == "cancelled":
            return self.cancelled
        return query


@pytest.fixture(scope="module")
def remote(serve_address):
    handle = serve.run(Scripted.bind(), name="scripted", route_prefix="/scripted")
    yield RemoteStage("fine", handle)
    serve.delete("scripted")


async def test_arrays_come_back_as_they_were_sent(remote):
    items = np.arange(12, dtype=np.int32).reshape(3, 4)
    sent = Candidates(items, items.astype(np.float32), items.astype(np.uint8), (("fresh", "timeout"),))
    back = await remote(sent, 20.0)
    for name in ("items", "scores", "sources"):
        assert getattr(back, name).dtype == getattr(sent, name).dtype
        assert np.array_equal(getattr(back, name), getattr(sent, name))
    assert back.failed == sent.failed


async def test_a_late_answer_is_given_up_in_time_and_its_work_is_dropped(remote):
    started = time.monotonic()
    with pytest.raises(TimeoutError):
        await remote("late", 0.3)
    assert time.monotonic() - started < 5
    for _ in range(50):
        if await remote("cancelled", 20.0):
            break
        await asyncio.sleep(0.1)
    assert await remote("cancelled", 20.0) >= 1


async def test_an_error_of_the_stage_arrives_as_itself(remote):
    with pytest.raises(ArtifactError) as raised:
        await remote("wrong", 20.0)
    assert "popular.npy is missing" in raised.value.message


async def test_a_replica_that_dies_is_unavailable_and_the_next_one_answers(remote):
    with pytest.raises(Unavailable, match="fine"):
        await remote("die", 20.0)
    for _ in range(100):
        try:
            assert await remote("again", 5.0) == "again"
            return
        except (Unavailable, TimeoutError):
            await asyncio.sleep(0.2)
    pytest.fail("no replica came back")
