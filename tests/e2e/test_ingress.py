"""What a caller notices when a part in front of the funnel hangs or dies, and what is recorded of it."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import httpx
import psutil
import pytest

from deployments.haproxy import ANSWER_RESERVE_MS
from deployments.haproxy_launcher import is_haproxy
from features.event_log import SqliteEventLog
from serving.schemas import MAX_TIMEOUT_MS
from tests.e2e.conftest import replicas

HUNG_S = (MAX_TIMEOUT_MS + ANSWER_RESERVE_MS) / 1000
PATIENCE_S = 60


@pytest.fixture
def client(service) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=service.address, timeout=PATIENCE_S) as client:
        yield client


def recommend(client: httpx.Client, key: str) -> httpx.Response:
    body = {"user_id": "пользователь/3", "k": 3}
    return client.post("/v1/recommend", json=body, headers={"Idempotency-Key": key})


def impressions(service) -> Counter[str]:
    """How often each id was recorded, once the writers have had the time to write what they were given."""
    time.sleep(1)
    log = SqliteEventLog(service.home / "events" / "mine.sqlite")
    try:
        return Counter(event.event_id for event in log.read(limit=100_000, kind="impression"))
    finally:
        log.close()


def gateways(service) -> list[psutil.Process]:
    return [p for p in service.cluster.members() if p.cmdline()[:1] == ["ray::ServeReplica:recpool:gateway"]]


def await_gateways(service, wanted: int) -> None:
    """Until so many run; Serve takes a moment to see that one is dead, and longer to start another."""
    until_s = time.monotonic() + PATIENCE_S
    while (alive := sum(map(psutil.pid_exists, replicas(service)["gateway"]))) < wanted:
        assert time.monotonic() < until_s, f"{alive} of {wanted} gateways run"
        time.sleep(0.2)


@contextmanager
def stopped(process: psutil.Process) -> Iterator[None]:
    process.suspend()
    try:
        yield
    finally:
        with suppress(psutil.NoSuchProcess):  # whoever watches the replicas has ended it
            process.resume()


def test_a_call_sent_again_under_its_key_is_recorded_once(service, client):
    replies = [recommend(client, key) for key in ("a", "a", "b")]
    ids = [reply.json()["recommendation_id"] for reply in replies]
    assert ids[0] == ids[1] != ids[2]
    recorded = impressions(service)
    assert recorded[ids[0]] == recorded[ids[2]] == 1


def test_calls_that_a_hung_gateway_holds_are_answered_by_another_and_recorded_once(service, client):
    before, wanted = impressions(service).total(), len(replicas(service)["gateway"])
    found = gateways(service)
    assert len(found) > 1
    took_s, ids = [], []
    with stopped(found[0]):
        for call in range(6):
            began = time.monotonic()
            reply = recommend(client, f"hung-{call}")
            took_s.append(time.monotonic() - began)
            assert reply.status_code == 200, reply.text
            ids.append(reply.json()["recommendation_id"])
    assert max(took_s) < HUNG_S + 10  # no other wait than that one; generous for a busy machine
    # If the one that hung was let live, it works off what it was given as well.
    recorded = impressions(service)
    assert [recorded[each] for each in ids] == [1] * len(ids)
    assert recorded.total() == before + len(ids)
    await_gateways(service, wanted)  # so that the tests that follow find the service as it was


def haproxies(service) -> list[psutil.Process]:
    return [p for p in service.cluster.members() if p.name() == "haproxy"]


def test_haproxy_that_died_is_stood_in_for_and_started_again(service, client):
    for process in haproxies(service):
        with suppress(psutil.NoSuchProcess):  # one that finishes what it has, and has
            process.kill()
    status, until_s = None, time.monotonic() + PATIENCE_S
    while status != 200 and time.monotonic() < until_s:
        try:
            status = recommend(client, "after").status_code
        except httpx.HTTPError:
            time.sleep(0.1)
    assert status == 200, f"nothing answers {PATIENCE_S} s after HAProxy died"
    (config,) = service.cluster.folders.haproxy.glob("*/haproxy.cfg")  # Serve's own, not a stand-in's
    while not any(is_haproxy(process.pid, config) for process in haproxies(service)):
        assert time.monotonic() < until_s, f"Serve has started no other {PATIENCE_S} s after HAProxy died"
        time.sleep(0.2)
