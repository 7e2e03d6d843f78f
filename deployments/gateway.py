"""The gateway: the HTTP service in a Serve replica."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping
from typing import Any

import httpx
from ray import serve
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from configs.errors import RecpoolError, Unavailable
from configs.settings import STAGES, Settings
from deployments import express, first_steps
from deployments.choice import read_choice
from deployments.handles import RemoteStage
from deployments.items_routes import items_router
from deployments.load_reports import LoadReporter, ServiceLoad
from deployments.own_calls import OwnCalls
from deployments.plan import GATEWAY
from deployments.pool_member import PoolMember
from deployments.pool_routes import pool_router
from deployments.releases.reporter import Reporter
from deployments.releases.routes import release_router
from deployments.releases.supervision import Supervision
from deployments.scale_routes import scale_router
from serving.events.posts import PATH, events_post
from serving.http import build_http
from serving.service import Service

log = logging.getLogger("recpool.gateway")
OWN_CALLS = 10
"""Before the first caller's; the batches of `serving.warming` have gone before."""
PROBE = {"k": 1, "dry_run": True, "timeout_ms": 1_000}
PATIENCE = 3
"""Probes in a row that the funnel may miss: one or two are a machine that is busy with something else."""
BROKEN = ("failed", "timeout")
"""Reasons for doing without a stage that speak of the stage, not of the request or its deadline."""


def own_name() -> str:
    """Of this replica, as Serve has it."""
    return serve.get_replica_context().replica_id.unique_id


class Probe:
    """Asks the app what a caller would, and tells a funnel that broke from one that is merely degraded.

    The service answers with popular items when its funnel does not, so the status alone says little.
    Only a funnel that has worked can break: one that never did since its replica started, for a model
    that cannot run, say, would not be repaired by replacing the replica again and again.

    Args:
        stages: those that run in this process; one elsewhere is no reason to replace this replica.
    """

    def __init__(self, http: ASGIApp, stages: Iterable[str]):
        self._http = http
        self._broken = {(stage, reason) for stage in stages for reason in BROKEN} | {("cascade", "timeout")}
        self._worked = False
        self._misses = 0

    async def __call__(self) -> None:
        """Raise Unavailable when the app fails a request, or when the funnel missed `PATIENCE` probes in a row.

        A refusal for overload is a sign of life.
        """
        transport = httpx.ASGITransport(app=self._http)
        async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
            reply = await client.post("/v1/recommend", json=PROBE)
        if reply.status_code == 200:
            self._judge(reply.json()["degraded"])
        elif reply.status_code >= 500 and reply.status_code != Unavailable.status:
            raise Unavailable(f"the request path answers {reply.status_code}: {reply.text:.200}")

    def _judge(self, degraded: list[dict[str, str]]) -> None:
        missing = self._broken & {(each["stage"], each["reason"]) for each in degraded}
        self._worked = self._worked or not missing
        self._misses = self._misses + 1 if missing and self._worked else 0
        if self._misses >= PATIENCE:
            raise Unavailable(f"the funnel missed {self._misses} probes in a row: {sorted(missing)}")


@serve.ingress()
class Gateway:
    """Owns a `Service` and the FastAPI app on top of it, both made in the replica.

    Args:
        handles: of the stages that run elsewhere; the others run in this process.
        tiers: of every stage, as the plan has them.
        champion: the release to serve when ``user_config`` names none; absent: the champion then.
    """

    def __init__(
        self,
        settings: Settings,
        handles: dict[str, DeploymentHandle],
        tiers: Mapping[str, str],
        champion: str | None = None,
    ):
        stages = {stage: RemoteStage(stage, handle, settings.handles) for stage, handle in handles.items()}
        for stage in stages.values():
            stage.connect()
        self._plan, self._champion = settings.plan.gateway, champion
        self._service = Service(settings, stages, tiers)
        posts = {PATH: events_post(self._service.events)}
        rollouts = Supervision(settings)
        routers = [pool_router(settings), release_router(settings, rollouts), scale_router()]
        routers.append(items_router(settings, self._service.items))
        self._http = build_http(self._service, settings.serving, routers, posts)
        self._reporter = Reporter(self._service, settings.releases.limits, rollouts, own_name)
        express.register(self._http)
        self._probe = Probe(self._http, [stage for stage in STAGES if stage not in stages])
        copies = self._plan.replicas or 0 if self._plan.shadows else 0
        service = self._service
        self._member = PoolMember(
            settings, service, GATEWAY, copies, version=lambda: service.version, scenes=service.scenes
        )
        load = ServiceLoad(self._service, settings.autoscale.slo_ms)
        self._load = LoadReporter(settings.autoscale, GATEWAY, load, settings.ranking.threads or 1)
        self._own_calls = OwnCalls(self._http, self._service.sample_users)
        # Stages elsewhere may not be there yet, and compute on devices that are not this process's.
        self._warms_up = self._plan.warm and not stages
        self._is_pooled = settings.pool.runtime.enabled and not stages
        self._keeping_warm: asyncio.Task[None] | None = None

    def __serve_build_asgi_app__(self) -> ASGIApp:
        return self._http

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Load the chosen release, then let go of the one before.

        A choice that cannot be carried out is no reason to stop serving the old release: Serve would
        replace a replica whose reconfigure raises, and its successors would fail the same way. Nor is it
        one to die when there is no old one: the service starts, and says on /readyz that it is not ready.
        """
        try:
            choice = read_choice(user_config)
            await self._service.load(choice.version or self._champion, self._warms_up)
            await self._service.divide(choice.traffic, self._warms_up)
        except Exception as error:
            if not isinstance(error, RecpoolError) and not self._service.ready:
                raise  # not a release that is wrong but a program; Serve reports it
            log.exception("%s not carried out", user_config)
        if self._service.ready and self._keeping_warm is None:
            await self._begin()
        first_steps.done()

    async def _begin(self) -> None:
        """Once there is a release to serve: claim a slice of the pool, and stay warm while others serve."""
        if self._warms_up:
            await self._own_calls(OWN_CALLS)
        if self._is_pooled:
            self._member.start()
        self._load.start()
        self._reporter.start()
        self._keeping_warm = asyncio.create_task(self._keep_warm())

    async def _keep_warm(self) -> None:
        """A shadow gets no calls, and would answer its first from memory that others have taken since."""
        while True:
            await asyncio.sleep(self._plan.keep_warm_s)
            if self._warms_up and self._member.stands_by:
                try:
                    await self._own_calls()
                except Exception:  # the edge of the task; the health check speaks of a path that is broken
                    log.exception("a request of its own failed")

    async def check_health(self) -> None:
        """Answer a small request the way a caller's would be; raises when that path is broken.

        A service without a release is alive: it says so on /readyz and waits for one.
        """
        if self._service.ready:
            await self._probe()

    async def __del__(self) -> None:
        if self._keeping_warm is not None:
            self._keeping_warm.cancel()
        self._member.stop()
        self._load.stop()
        self._reporter.stop()
        await self._service.close()
