"""A gateway stands by beside those that serve, and takes over when one of them dies."""

from __future__ import annotations

import json
import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor

import httpx

from deployments.haproxy_launcher import ROLES

PATIENCE_S = 120
"""For a replica to start on a machine that does other things."""


def roles(service) -> list[tuple[bool, int]]:
    """Whether it stands by, and its leased share, of each gateway, as the pool reports them."""
    devices = httpx.get(f"{service.address}/v1/pool/devices", timeout=30).raise_for_status().json()["devices"]
    found = [slice_ for device in devices for slice_ in device["slices"] if slice_["workload"] == "gateway"]
    return sorted((each["shadow"], each["leased_milli"]) for each in found)


def gateways(service) -> dict[str, int]:
    """Process ids of the running gateways by the id that Serve gave them."""
    record, headers = service.cluster.record(), {"Authorization": f"Bearer {service.cluster.token()}"}
    found = httpx.get(f"{record.dashboard}/api/serve/applications/", headers=headers, timeout=30).json()
    replicas = found["applications"]["recpool"]["deployments"]["gateway"]["replicas"]
    return {each["replica_id"]: each["pid"] for each in replicas if each["state"] == "RUNNING"}


def told(service) -> dict[str, bool]:
    """What HAProxy was told: whether it stands by, of each gateway."""
    file = service.cluster.folders.haproxy / ROLES
    return json.loads(file.read_text()) if file.exists() else {}


def is_whole(service) -> bool:
    """Two serve and one stands by, by the pool's book and by what Serve runs."""
    running = [told(service).get(replica) for replica in gateways(service)]
    return [shadow for shadow, _ in roles(service)] == sorted(map(bool, running)) == [False, False, True]


def ask(service, count: int) -> list[int]:
    with httpx.Client(base_url=service.address, timeout=30) as client:
        return [client.post("/v1/recommend", json={"k": 3}).status_code for _ in range(count)]


def await_truth(truth, what: str) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not truth():
        assert time.monotonic() < deadline_s, what
        time.sleep(0.05)


def test_a_shadow_takes_over_for_a_gateway_that_dies_and_its_replacement_stands_by(service):
    await_truth(lambda: is_whole(service), "two serve and one stands by")
    assert roles(service)[2] == (True, 0)
    before, pids = told(service), gateways(service)
    shadow = next(replica for replica in pids if before[replica])
    victim = next(replica for replica in pids if not before[replica])
    with ThreadPoolExecutor(4) as callers:
        answers = [callers.submit(ask, service, 30) for _ in range(4)]
        os.kill(pids[victim], signal.SIGKILL)
        await_truth(lambda: told(service).get(shadow) is False, "the shadow is promoted")
        assert {status for each in answers for status in each.result()} == {200}
    await_truth(lambda: is_whole(service), "the replacement stands by")
    assert told(service)[shadow] is False
