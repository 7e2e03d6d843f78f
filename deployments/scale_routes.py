"""What the autoscaler decided last, and why, by HTTP: ``GET /v1/pool/scaling``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import ray
from fastapi import APIRouter, Response
from ray.exceptions import RayActorError

from configs.errors import NotFound, Unavailable
from deployments.autoscaling import AUTOSCALER, ScaleReport, as_document
from deployments.pool_client import NAMESPACE, READ_TIMEOUT_S
from deployments.pool_routes import as_json
from deployments.pool_rules import PREFIX
from serving.schemas import ErrorReply

SCALING = f"{PREFIX}/scaling"
NONE = "no autoscaler runs: no deployment is named in autoscale.deployments of the service's profile"
LOST = "the autoscaler does not answer or starts again; replicas stay as they are meanwhile"
Ask = Callable[[], Awaitable[tuple[ScaleReport, ...]]]


def scale_router(ask: Ask | None = None) -> APIRouter:
    """Args: ask: for the reports; absent: the autoscaler of the cluster that this process belongs to."""
    router, ask = APIRouter(tags=["pool"]), ask or ask_autoscaler
    refused: dict[int | str, dict[str, Any]] = {
        404: {"model": ErrorReply, "description": "counts of replicas are fixed"},
        503: {"model": ErrorReply, "description": "the autoscaler does not answer"},
    }

    @router.get(SCALING, response_model=None, responses=refused)
    async def scaling() -> Response:
        """Replicas that were decided on last for each deployment that is driven, and the reasons."""
        return as_json(as_document(await ask()))

    return router


async def ask_autoscaler() -> tuple[ScaleReport, ...]:
    """Raises NotFound when there is none, Unavailable when it does not answer in time."""
    try:
        async with asyncio.timeout(READ_TIMEOUT_S):
            handle: Any = await asyncio.to_thread(ray.get_actor, AUTOSCALER, NAMESPACE)
            return await handle.reports.remote()
    except ValueError:
        raise NotFound(NONE) from None
    except (TimeoutError, RayActorError) as error:
        raise Unavailable(LOST) from error
