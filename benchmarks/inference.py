"""Models by the Open Inference Protocol beside a direct call of ONNX Runtime, and stages on a Triton that is killed.

    make bench NAME=inference

The model is the champion's fine ranker, one user and 100 candidates a call, all arms with the same tensors. Latency
counts from the scheduled time (open loop), at one rate for all; the best rate is the highest that keeps a p99 within
50 ms. Triton is the real server out of nvidia-pytriton's wheel, whose models run in its Python backend.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.inference_arms import ARMS, Asked, direct, direct_rate, inputs_of
from benchmarks.live import Live, live_service
from benchmarks.load import Load, Outcomes, Summary, best_rate, fire, poisson, start
from benchmarks.report import Floor, is_quick, print_report, print_table
from benchmarks.triton_server import Triton, environment, lay_out, triton_server
from configs.settings import Settings, load_settings
from deployments.console import reporting
from deployments.offline import ensure_dataset, ensure_release, ensure_store
from pool.repository import open_releases
from pool.triton_repository import write_repository

MODEL = "fine_cross"
CANDIDATES = 100
RATE_PER_S = 40.0
SECONDS, QUICK_SECONDS = 20.0, 3.0
STEP_S, QUICK_STEP_S = 5.0, 1.0
P99_MS = 50.0
BEGIN_PER_S = 100.0
QUICK_SEARCH: dict[str, Any] = {"resolution": 0.25, "attempts": 1, "repeats": 1}
FUNNEL_PER_S = 30.0
FAULT_S, QUICK_FAULT_S = 10.0, 3.0
"""Seconds of load before the server is killed, without it, and with its successor."""
START_S = 10.0
"""Of the server, with a process for each model."""
ASKED = 50
"""Calls of models: by then every gateway's first requests have been answered."""
READY_S = 120.0
GRPC_RATE_SHARE, REST_RATE_SHARE = 0.3, 0.3


def main() -> None:
    """See the module."""
    settings = load_settings()
    with reporting() as report:
        ensure_dataset(settings, report)
        ensure_release(settings, report)
        ensure_store(settings, report)
    served = measure_service(settings)
    killed = measure_failover(settings)
    show(served, killed)


def measure_service(settings: Settings) -> dict[str, Any]:
    """Latency at one rate and best rate of each arm, and of direct calls."""
    releases = open_releases(settings)
    version = releases.champion()
    assert version is not None
    file = releases.path(version) / "models" / MODEL / "1" / "model.onnx"
    inputs = inputs_of(file, CANDIDATES)
    seconds, step_s = (QUICK_SECONDS, QUICK_STEP_S) if is_quick() else (SECONDS, STEP_S)
    found: dict[str, Any] = {"direct": figures(direct(file, inputs, poisson(RATE_PER_S, seconds, seed=1)).summary())}
    found["direct"]["best_per_s"] = direct_rate(file, inputs, step_s)
    with live_service(RECPOOL_INFERENCE__ENABLED="true") as live:
        asked = Asked(live.port, live.port + 1, MODEL, version, inputs)
        asked.await_ready(READY_S)
        for name, ask in ARMS.items():
            print(f"{name} ...", flush=True)
            ask(asked, poisson(RATE_PER_S, 1.0, seed=0))
            outcomes = ask(asked, poisson(RATE_PER_S, seconds, seed=1))
            best = best_rate(
                lambda rate, ask=ask: ask(asked, poisson(rate, step_s, seed=2)).summary(),
                begin=BEGIN_PER_S,
                p99_ms=P99_MS,
                **(QUICK_SEARCH if is_quick() else {}),
            )
            found[name] = figures(outcomes.summary()) | {"best_per_s": best.rate}
    return found


def figures(summary: Summary) -> dict[str, Any]:
    return {
        "p50_ms": summary.p50_ms,
        "p99_ms": summary.p99_ms,
        "failed": 1 - summary.answered,
    }


def measure_failover(settings: Settings) -> dict[str, Any]:
    """The whole funnel with all models on Triton, which is killed under load and started again."""
    python = environment(settings.home, lambda line: print(line, flush=True))
    with tempfile.TemporaryDirectory(prefix="rp-triton-") as name:
        folder = Path(name)
        version = write_repository(open_releases(settings), folder / "onnx")[0]
        for config in (folder / "onnx").glob("*/config.pbtxt"):
            lay_out(python, config, folder / "models")
        with triton_server(python, folder / "models", folder) as triton:
            port = triton.grpc_port
            url = {"RECPOOL_TRITON__URL": triton.grpc_url}
            with live_service(**url) as live:
                await_computing(triton, live)
                return kill_and_restart(live, triton, python, folder, port) | {"release": version}


def kill_and_restart(live: Live, triton: Triton, python: Path, folder: Path, port: int) -> dict[str, Any]:
    """Some seconds with the server, some without it, some with its successor."""
    each_s = QUICK_FAULT_S if is_quick() else FAULT_S
    requests = live.requests(500, timeout_ms=500)
    load = Load(live.port, requests, poisson(FUNNEL_PER_S, 3 * each_s + START_S, seed=4), contains=b'"degraded":[]')
    before = computed(triton)
    with start(load) as running:
        time.sleep(each_s)
        alive = computed(triton)
        triton.kill()
        killed_s = time.monotonic() - running.started_s
        time.sleep(each_s)
        with triton_server(python, folder / "models", folder, port) as again:
            back_s = time.monotonic() - running.started_s
            outcomes = running.outcomes()
            after = computed(again)
    return {
        "before": phase(outcomes, 0.0, killed_s),
        "without": phase(outcomes, killed_s, back_s),
        "again": phase(outcomes, back_s, math.inf),
        "by_triton_before": alive - before,
        "by_triton_again": after,
    }


def phase(outcomes: Outcomes, since_s: float, until_s: float) -> dict[str, Any]:
    chosen = outcomes.select((outcomes.scheduled_s >= since_s) & (outcomes.scheduled_s < until_s))
    summary = chosen.summary()
    return {
        "requests": summary.count,
        "failed": int(np.sum(chosen.status != 200)),
        "degraded": int(np.sum((chosen.status == 200) & ~chosen.found)),
        "p50_ms": summary.p50_ms,
        "p99_ms": summary.p99_ms,
        "max_ms": summary.max_ms,
    }


def computed(triton: Triton) -> int:
    """Calls of models that the server has answered since it started."""
    reply = httpx.get(f"http://127.0.0.1:{triton.http_port}/v2/models/stats", timeout=10, trust_env=False)
    return sum(each["inference_stats"]["success"]["count"] for each in reply.json()["model_stats"])


def await_computing(triton: Triton, live: Live) -> None:
    """Until the gateways have found the server, and ask it."""
    until_s = time.monotonic() + READY_S
    while computed(triton) < ASKED:
        if time.monotonic() > until_s:
            raise TimeoutError("no stage asked Triton")
        fire(Load(live.port, live.requests(20), poisson(20, 1.0, seed=3)))


def show(served: Mapping[str, Mapping[str, Any]], killed: Mapping[str, Any]) -> None:
    """Print tables, floors and the report."""
    columns = ("p50_ms", "p99_ms", "best_per_s")
    print_table(["arm", *columns], [[name, *(each[column] for column in columns)] for name, each in served.items()])
    phases = {name: each for name, each in killed.items() if isinstance(each, dict)}
    fields = list(next(iter(phases.values())))
    print_table(["Triton", *fields], [[name, *each.values()] for name, each in phases.items()])
    print(
        f"calls of models that Triton computed: {killed['by_triton_before']} before, {killed['by_triton_again']} again"
    )
    best = served["direct"]["best_per_s"]
    floors = [
        Floor("gRPC's best rate over direct calls'", served["grpc"]["best_per_s"] / best, GRPC_RATE_SHARE),
        Floor("REST's best rate over direct calls'", served["rest, binary"]["best_per_s"] / best, REST_RATE_SHARE),
        Floor("failed calls of models", max(each["failed"] for each in served.values()), 0, "lower"),
        Floor("failed recommendations with Triton killed", sum(each["failed"] for each in phases.values()), 0, "lower"),
        Floor("calls that Triton computed after its restart", killed["by_triton_again"], 1),
    ]
    print_report("inference", {"served": served, "triton": killed}, floors)


if __name__ == "__main__":
    main()
