"""Releases by HTTP: ``/v1/releases``. What is published, and the rollout of one of them."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from fastapi import APIRouter, Response, Security
from fastapi.security import HTTPBearer
from pydantic import BaseModel, Field

from configs.branch import Branch
from configs.errors import InvalidRequest
from configs.settings import Settings
from deployments.environment import Folders
from deployments.pool_requests import AdminRule, checked_route, refuse_other_methods
from deployments.releases.housekeeping import release_lines
from deployments.releases.supervision import Rollouts
from deployments.releases.views import PREFIX, RolloutView, plain
from pool.repository import open_releases
from serving.experiments.rollout import RolloutPlan
from serving.schemas import ErrorReply


class ReleaseLine(BaseModel):
    """One published release."""

    version: str
    aliases: list[str]
    recipe: str
    created_at_s: float
    users: int
    items: int
    bytes: int


class ReleaseList(BaseModel):
    releases: list[ReleaseLine]


class Reason(Branch):
    """Why; it is kept in the release's history."""

    reason: str = Field("asked for by HTTP", min_length=1, max_length=500)


_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorReply, "description": "the body is not JSON"},
    401: {"model": ErrorReply, "description": "the token is missing or wrong"},
    404: {"model": ErrorReply, "description": "no such release"},
    409: {
        "model": ErrorReply,
        "description": "another rollout is under way, or none is, or it is the champion already",
    },
    413: {"model": ErrorReply, "description": "the body is larger than the limit"},
    415: {"model": ErrorReply, "description": "the body is not said to be JSON"},
    422: {"model": ErrorReply, "description": "a field is wrong; the message names it and the remedy"},
    503: {"model": ErrorReply, "description": "the supervisor of rollouts is not there"},
    504: {"model": ErrorReply, "description": "the supervisor did not answer in time"},
}


def release_router(settings: Settings, rollouts: Rollouts) -> APIRouter:
    """The routes of a gateway replica."""
    rule = AdminRule(settings.serving.host, Folders(settings.home).token)
    route = checked_route(rule, settings.serving.max_body_bytes, _as_it_is)
    router = APIRouter(prefix=PREFIX, tags=["releases"], route_class=route)
    repository = open_releases(settings)
    security: dict[str, Any] = (
        {"dependencies": [Security(HTTPBearer(description="the token of the service's home", auto_error=False))]}
        if rule.needs_token
        else {}
    )
    view = {"response_model": None, "responses": {200: {"model": RolloutView}, **_REFUSALS}}

    @router.get("", response_model=None, responses={200: {"model": ReleaseList}})
    async def releases() -> Response:
        """Published releases, oldest first."""
        return _json({"releases": await asyncio.to_thread(release_lines, repository)})

    @router.get("/rollout", **view)
    async def rollout() -> Response:
        """The rollout that is under way, or the last one since the service came up."""
        return _json(plain(await rollouts.view()))

    @router.post("/rollout", **view, **security)
    async def begin(body: RolloutPlan) -> Response:
        """Let a release come to serve step by step; the answer says that it has begun. The same one again changes
        nothing."""
        return _json(plain(await rollouts.begin(body)))

    @router.post("/rollout/cancel", **view, **security)
    async def cancel(body: Reason) -> Response:
        """Give all traffic back to the champion."""
        return _json(plain(await rollouts.cancel(body.reason)))

    refuse_other_methods(router, "/rollout")
    return router


async def _as_it_is(model: type, refused: InvalidRequest) -> InvalidRequest:
    return refused


def _json(value: Any) -> Response:
    return Response(orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY), media_type="application/json")
