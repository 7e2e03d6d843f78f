"""``/v1/items``: changes of items, by whoever may change the pool."""

from __future__ import annotations

from typing import Any, Protocol

from fastapi import APIRouter, Response

from configs.errors import InvalidRequest
from configs.settings import Settings
from deployments.environment import Folders
from deployments.pool_requests import AdminRule, checked_route
from deployments.pool_routes import change_answers, security_of
from serving.items.schemas import ChangesReply, ChangesRequest
from serving.posts import JsonReply

PREFIX = "/v1/items"


class Items(Protocol):
    """What the route asks for; `serving.items.intake.ItemIntake` has it."""

    async def take(self, request: ChangesRequest) -> dict[str, Any]: ...


def items_router(settings: Settings, items: Items) -> APIRouter:
    """The route of a gateway replica."""
    rule = AdminRule(settings.serving.host, Folders(settings.home).token)
    router = APIRouter(
        prefix=PREFIX, tags=["items"], route_class=checked_route(rule, settings.serving.max_body_bytes, _as_it_is)
    )

    @router.post("", **change_answers(ChangesReply), **security_of(rule))
    async def change(body: ChangesRequest) -> Response:
        """Add, change or delete items without a new release: durable when this answers, seen within a second."""
        return JsonReply(await items.take(body))

    return router


async def _as_it_is(model: type, refused: InvalidRequest) -> InvalidRequest:
    return refused
