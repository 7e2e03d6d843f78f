"""The HTTP side: routes, limits and the mapping of errors to statuses. All work is in `serving.service`."""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, Header, Request, Response
from starlette.exceptions import HTTPException

from configs.errors import InvalidRequest, OfflineError, Overloaded, RecpoolError
from configs.settings import ServingSettings
from serving.posts import JsonReply, Post, Posts
from serving.schemas import (
    CallHeaders,
    ErrorReply,
    Health,
    RankRequest,
    RecommendRequest,
    Reply,
    SimilarRequest,
    Status,
)
from serving.service import Service

log = logging.getLogger("recpool.http")

_NAMES = {
    400: "InvalidRequest",
    401: "Unauthorized",
    404: "NotFound",
    405: "MethodNotAllowed",
    413: "InvalidRequest",
    415: "InvalidRequest",
}
_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorReply, "description": "the body is not JSON"},
    413: {"model": ErrorReply, "description": "the body is larger than the limit"},
    415: {"model": ErrorReply, "description": "the body is not said to be JSON"},
    422: {"model": ErrorReply, "description": "a field is wrong; the message names it and the remedy"},
    429: {"model": ErrorReply, "description": "too busy to answer in time; Retry-After says when to come back"},
    503: {"model": ErrorReply, "description": "not ready"},
    504: {"model": ErrorReply, "description": "the deadline passed before the request was understood"},
}


def build_http(
    service: Service,
    settings: ServingSettings,
    routers: Sequence[APIRouter] = (),
    more: Mapping[str, Post] = MappingProxyType({}),
) -> Posts:
    """The application that a gateway replica serves.

    The routes that carry the traffic are answered by `serving.posts`; FastAPI documents them and
    answers the others.

    Args:
        routers: further routes; their errors are told like those of the others.
        more: further routes that carry traffic, by path.
    """
    app = FastAPI(
        title="Recpool",
        version="1",
        description=f"Recommendations from the live release. Bodies up to {settings.max_body_bytes} bytes; "
        f"k is {settings.default_k} and the deadline {settings.default_timeout_ms:g} ms unless a request "
        "says otherwise.",
    )
    _add_error_handlers(app)
    _add_gets(app, service)
    for router in routers:
        app.include_router(router)
    posts = {**_posts(service), **more}
    for path, post in posts.items():
        app.post(path, response_model=None, responses={200: {"model": post.reply}, **_REFUSALS})(post.answer)
    if routers:
        app.openapi()  # prepares routes and document, which else the first request for one does, and holds up calls
    return Posts(app, posts, settings.max_body_bytes, refusal)


def _posts(service: Service) -> dict[str, Post]:
    headers_of = Annotated[CallHeaders, Header()]

    async def recommend(request: RecommendRequest, headers: headers_of) -> Response:  # type: ignore[valid-type]
        """The best items for a user, from the whole catalogue."""
        return _json(await service.recommend(request, headers))

    async def rank(request: RankRequest, headers: headers_of) -> Response:  # type: ignore[valid-type]
        """The caller's own items, best first; unknown ones last and named."""
        return _json(await service.rank(request, headers))

    async def similar(request: SimilarRequest, headers: headers_of) -> Response:  # type: ignore[valid-type]
        """Items like the given ones."""
        return _json(await service.similar(request, headers))

    answers: list[tuple[str, Any, Callable[..., Awaitable[Response]]]] = [
        ("/v1/recommend", RecommendRequest, recommend),
        ("/v1/rank", RankRequest, rank),
        ("/v1/similar", SimilarRequest, similar),
    ]
    # The annotations are names of this function, which FastAPI could not look up as text.
    for _, body, answer in answers:
        answer.__annotations__ = {"request": body, "headers": headers_of, "return": Response}
    return {path: Post(body, answer, Reply) for path, body, answer in answers}


def _add_gets(app: FastAPI, service: Service) -> None:
    @app.get("/healthz", response_model=Health)
    async def healthz() -> Response:
        """Alive: the process answers."""
        return _json({"status": "ok", "reason": None})

    @app.get("/readyz", response_model=Health, responses={503: {"model": Health}})
    async def readyz() -> Response:
        """Ready: a release is loaded."""
        reason = service.why_not_ready
        return _json({"status": "not ready" if reason else "ready", "reason": reason}, 503 if reason else 200)

    @app.get("/v1/status", response_model=Status)
    async def status() -> Response:
        """Versions, plan and counters of the replica that answers."""
        return _json(service.status())


def _add_error_handlers(app: FastAPI) -> None:
    async def refuse(_: Request, error: Exception) -> Response:
        return refusal(error)

    for kind in (RecpoolError, HTTPException, Exception):
        app.exception_handler(kind)(refuse)


def refusal(error: Exception) -> Response:
    """The reply that tells a caller of an error; what is no caller's business is only logged."""
    if isinstance(error, HTTPException):
        name = _NAMES.get(error.status_code, "Error")
        field = "body" if error.status_code == 413 else None
        return _error(error.status_code, name, str(error.detail), field, dict(error.headers or {}))
    if isinstance(error, RecpoolError) and not isinstance(error, OfflineError):  # those name files and settings
        headers = {"Retry-After": str(max(1, round(error.retry_after_s)))} if isinstance(error, Overloaded) else None
        field = error.field if isinstance(error, InvalidRequest) else None
        return _error(error.status, type(error).__name__, error.message, field, headers)
    log.error("a request failed", exc_info=error)
    return _error(500, "InternalError", "an error of the service; its log says which", None)


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return JsonReply(value, status, headers)


def _error(status: int, name: str, message: str, field: str | None, headers: dict[str, str] | None = None) -> Response:
    # A message may quote input with lone surrogates, which UTF-8 cannot carry.
    body = {"type": name, "message": message.encode("utf-8", "replace").decode(), "field": field}
    return _json({"error": body}, status, headers)
