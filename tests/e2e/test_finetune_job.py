"""A fine-tune sent by `ray job submit`: a workload of the pool that ends as a release, while requests are answered."""

from __future__ import annotations

import json
import subprocess
import time

import httpx

TIMEOUT_S = 400


def test_a_fine_tune_sent_as_a_job_runs_in_the_pool_beside_requests_and_publishes_a_release(service, recpool):
    finetune = "python -m deployments.finetune --name evening --epochs 1 --every 1 --json"
    script = f". {service.said['environment']} && ray job submit -- {finetune}"
    job = subprocess.Popen(["sh", "-c", script], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True)
    statuses, slices, until_s = set(), {}, time.monotonic() + TIMEOUT_S
    with httpx.Client(base_url=service.address, timeout=30) as client:
        while job.poll() is None and time.monotonic() < until_s:
            statuses.add(client.post("/v1/recommend", json={"user_id": "пользователь/3", "k": 3}).status_code)
            devices = client.get("/v1/pool").json()["devices"]
            slices |= {held["workload"]: held for device in devices for held in device["slices"]}
    printed, _ = job.communicate(timeout=TIMEOUT_S)
    assert job.returncode == 0, printed
    told = [json.loads(line) for line in printed.splitlines() if line.startswith("{")]
    assert {"progress", "result"} == {each["event"] for each in told}
    assert any(each["share_milli"] for each in told[:-1])
    assert (slices["evening"]["kind"], slices["evening"]["priority"]) == ("finetune", "best_effort")
    assert slices["gateway"]["priority"] == "guaranteed"
    assert statuses == {200}

    published = told[-1]["result"]["version"]
    assert published in {each["version"] for each in json.loads(recpool("release", "list", "--json").stdout)}
    assert published != service.release
    assert json.loads(recpool("pool", "status", "evening", "--json").stdout)["phase"] == "succeeded"
