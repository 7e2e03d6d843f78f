"""The gateway: the HTTP service in a Serve replica."""

from __future__ import annotations

import logging
from typing import Any

import httpx
from fastapi import FastAPI
from ray import serve
from ray.serve.handle import DeploymentHandle

from configs.errors import RecpoolError, Unavailable
from configs.settings import Settings
from deployments.choice import ReleaseChoice
from deployments.handles import RemoteStage
from serving.http import build_http
from serving.service import Service

log = logging.getLogger("recpool.gateway")
PROBE = {"k": 1, "dry_run": True, "timeout_ms": 2_000}


@serve.ingress()
class Gateway:
    """Owns a `Service` and the FastAPI app on top of it, both made in the replica.

    Args:
        handles: of the stages that run elsewhere; the others run in this process.
    """

    def __init__(self, settings: Settings, handles: dict[str, DeploymentHandle]):
        stages = {stage: RemoteStage(stage, handle) for stage, handle in handles.items()}
        self._service = Service(settings, stages)
        self._http = build_http(self._service, settings.serving)

    def __serve_build_asgi_app__(self) -> FastAPI:
        return self._http

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Load the chosen release, then let go of the one before.

        A release that cannot be loaded is no reason to stop serving the old one: Serve would replace
        a replica whose reconfigure raises, and its successors would fail the same way. Nor is it one
        to die when there is no old one: the service starts, and says on /readyz what it lacks.
        """
        choice = ReleaseChoice.model_validate(user_config)
        try:
            await self._load(choice.version)
        except Exception as error:
            if not isinstance(error, RecpoolError) and not self._service.ready:
                raise  # not a release that is wrong but a program; Serve reports it
            log.exception("release %s not loaded", choice.version or "(champion)")

    async def _load(self, version: str | None) -> None:
        if version is None and not self._service.ready:
            await self._service.start()
        else:
            await self._service.load(version)

    async def check_health(self) -> None:
        """Answer a small request the way a caller's would be; raises when that path is broken.

        A service without a release is alive: it says so on /readyz and waits for one.
        """
        if self._service.ready:
            await probe(self._http)

    async def __del__(self) -> None:
        await self._service.close()


async def probe(http: FastAPI) -> None:
    """Raise Unavailable when the app fails a request. A refusal for overload is a sign of life."""
    transport = httpx.ASGITransport(app=http)
    async with httpx.AsyncClient(transport=transport, base_url="http://gateway") as client:
        reply = await client.post("/v1/recommend", json=PROBE)
    if reply.status_code >= 500 and reply.status_code != Unavailable.status:
        raise Unavailable(f"the request path answers {reply.status_code}: {reply.text:.200}")
