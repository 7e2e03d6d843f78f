"""The limit no server can pass: Recpool's cascade called in a loop, in one process a core, without HTTP."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from benchmarks.peers.arms import ROOT
from configs.settings import STAGES, Settings, load_settings
from features.store import open_store
from pool.repository import ReleaseRepository
from serving.cascade import Cascade
from serving.hydration import Hydrator
from serving.preparation import Row
from serving.release import Release
from serving.stages import InPlace, load_stage, stage_threads

PROCESSES = 2
DEADLINE_S = 60.0
WARM_UP = 5


def measure(batch: int, seconds: float) -> dict[str, float]:
    """Requests a second of `PROCESSES` loops side by side, and their latency.

    Args:
        batch: requests in one call of the cascade.
    """
    command = [sys.executable, "-m", "benchmarks.peers.limit", str(batch), str(seconds)]
    loops = [
        subprocess.Popen([*command, str(seed)], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for seed in range(PROCESSES)
    ]
    try:
        for loop in loops:  # all have loaded the release before one begins
            assert loop.stdout is not None and loop.stdout.readline().strip() == "ready"
        for loop in loops:
            assert loop.stdin is not None
            loop.stdin.write("go\n")
            loop.stdin.flush()
        said = [json.loads(loop.communicate()[0].splitlines()[-1]) for loop in loops]
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
    return {
        "per_s": sum(each["per_s"] for each in said),
        "p50_ms": float(np.mean([each["p50_ms"] for each in said])),
        "p99_ms": max(each["p99_ms"] for each in said),
    }


def main(batch: int, seconds: float, seed: int) -> None:
    """One loop; waits for a line on its standard input before it begins."""
    settings = load_settings()
    cascade, users = load_cascade(settings)
    order = np.random.default_rng(seed).permutation(len(users))
    print(json.dumps(asyncio.run(_loop(cascade, [users[i] for i in order], settings, batch, seconds))), flush=True)


def load_cascade(settings: Settings) -> tuple[Cascade, list[str]]:
    """The champion's funnel as a gateway has it, on this thread, and the users of its release."""
    repository = ReleaseRepository(settings.releases_folder)
    version = repository.champion()
    assert version is not None, "no release; `recpool up` makes one"
    release = Release.load(repository, version)
    executor = stage_threads(settings.ranking.threads)
    stages = {name: InPlace(load_stage(name, release, settings, executor)) for name in STAGES}
    store = open_store(settings.store, settings.store_folder)
    hydrator = Hydrator(store, release.encoder, settings.store, None)
    return Cascade(release, stages, hydrator, settings.recall, settings.ranking), release.encoder.user_ids.values


async def _loop(
    cascade: Cascade, users: Sequence[str], settings: Settings, batch: int, seconds: float
) -> dict[str, Any]:
    for _ in range(WARM_UP):
        await cascade.recommend(_rows(users[:batch], settings))
    print("ready", flush=True)
    sys.stdin.readline()
    took, at, began = [], 0, time.perf_counter()
    while time.perf_counter() - began < seconds:
        chosen = [users[(at + place) % len(users)] for place in range(batch)]
        at += batch
        started = time.perf_counter()
        await cascade.recommend(_rows(chosen, settings))
        took.append(time.perf_counter() - started)
    p50, p99 = np.quantile(took, (0.5, 0.99)) * 1000
    return {"per_s": at / (time.perf_counter() - began), "p50_ms": float(p50), "p99_ms": float(p99)}


def _rows(users: Sequence[str], settings: Settings) -> list[Row]:
    deadline_s = time.monotonic() + DEADLINE_S
    return [Row(deadline_s=deadline_s, k=settings.serving.default_k, user_id=user_id) for user_id in users]


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3]))
