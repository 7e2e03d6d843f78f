"""What is looked at before a release gets any traffic: figures on held-out events, and that it answers at all.

Both are works of the pool (`serving.works`). With a pool they are submitted to it; without one they run in a process of
their own, behind everything else on the machine.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from configs.errors import ArtifactError, RecpoolError, Unavailable
from configs.settings import Settings, build_settings
from pool.views import PoolReport, WorkloadReport
from pool.workload import WorkloadKind, WorkloadSpec

POLL_S = 0.5
MODEL = "release"
ENDED = ("succeeded", "failed", "cancelled", "parked")
LEAST_WARM = {"batch_sizes": [1, 8], "runs": 3}


class Pool(Protocol):
    """What is asked of the pool; `deployments.pool_client.PoolClient` has it."""

    async def report(self) -> PoolReport: ...
    async def submit(self, spec: WorkloadSpec) -> WorkloadReport: ...
    async def workload(self, name: str) -> WorkloadReport: ...
    async def cancel(self, name: str, reason: str) -> WorkloadReport: ...


class OfflineChecks:
    """Implements `deployments.releases.rollout_run.Checks`.

    Args:
        pool: absent: without one.
    """

    def __init__(self, settings: Settings, pool: Pool | None = None):
        self._settings, self._pool = settings, pool

    async def evaluate(self, versions: tuple[str, ...]) -> Mapping[str, Any]:
        """Figures of releases, as `serving.works.evaluate`. Raises RecpoolError with the reason when there are none."""
        gate = self._settings.releases.gate
        options = {"versions": list(versions), "users": gate.users, "most_rows": gate.most_rows}
        return await self._run("evaluate", versions[-1], options)

    async def warm_up(self, version: str) -> Mapping[str, Any]:
        """How a release answers, as `serving.works.warmup`. Raises RecpoolError when an answer makes no sense."""
        return await self._run("warmup", version, LEAST_WARM)

    async def _run(self, kind: WorkloadKind, version: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
        if self._pool is not None:
            return await _in_pool(self._pool, kind, version, options)
        return await _in_process(self._settings, kind, version, options)


async def _in_pool(pool: Pool, kind: WorkloadKind, version: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    tiers = tuple(dict.fromkeys(device.kind for device in (await pool.report()).devices))
    name = f"rollout-{version}-{kind}"
    stated = {"name": name, "kind": kind, "model": MODEL, "version": version, "tier": tiers, "options": options}
    spec = WorkloadSpec.model_validate(stated)
    try:
        found = await pool.submit(spec)
        while found.phase not in ENDED:
            await asyncio.sleep(POLL_S)
            found = await pool.workload(spec.name)
    except asyncio.CancelledError:
        await pool.cancel(spec.name, "its rollout was cancelled")
        raise
    if found.phase != "succeeded":
        raise Unavailable(f"workload {spec.name} {found.phase}: {found.reason}")
    return found.result


async def _in_process(
    settings: Settings, kind: WorkloadKind, version: str, options: Mapping[str, Any]
) -> Mapping[str, Any]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "deployments.releases.offline_checks",
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    order = {"settings": settings.model_dump(mode="json"), "kind": kind, "version": version, "options": options}
    try:
        out, _ = await process.communicate(json.dumps(order).encode())
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    try:
        said = json.loads(out)
    except ValueError:
        raise Unavailable(f"the {kind} of release {version} ended with exit code {process.returncode}") from None
    if "error" in said:
        raise ArtifactError(said["error"])
    return said


def main() -> None:
    """The process: an order on standard input, the work's result or its error on standard output."""
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    order = json.load(sys.stdin)
    # What works print is none of the answer.
    out, sys.stdout = sys.stdout, sys.stderr
    try:
        said: Any = _work(order)
    except RecpoolError as error:
        said = {"error": error.message}
    print(json.dumps(said), file=out, flush=True)


def _work(order: Mapping[str, Any]) -> Mapping[str, Any]:
    from serving.works.registry import make_work  # torch takes seconds to import; the supervisor needs none of it

    settings = build_settings(order["settings"])
    stated = {"name": "check", "model": MODEL, **{name: order[name] for name in ("kind", "version", "options")}}
    spec = WorkloadSpec.model_validate(stated)
    work = make_work(spec, settings, Path(settings.home))
    while work.step(1):
        pass
    return dict(work.result())


if __name__ == "__main__":
    main()
