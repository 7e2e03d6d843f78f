"""The HTTP side: routes, limits and the mapping of errors to statuses. All work is in `serving.service`."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import orjson
from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from configs.errors import InvalidRequest, OfflineError, Overloaded, RecpoolError
from configs.settings import ServingSettings
from serving.schemas import ErrorReply, Health, RankRequest, RecommendRequest, Reply, SimilarRequest, Status
from serving.service import Service

log = logging.getLogger("recpool.http")

_NAMES = {400: "InvalidRequest", 404: "NotFound", 405: "MethodNotAllowed", 413: "InvalidRequest"}
_REFUSALS: dict[int | str, dict[str, Any]] = {
    400: {"model": ErrorReply, "description": "the body is not JSON"},
    413: {"model": ErrorReply, "description": "the body is larger than the limit"},
    422: {"model": ErrorReply, "description": "a field is wrong; the message names it and the remedy"},
    503: {"model": ErrorReply, "description": "not ready"},
    504: {"model": ErrorReply, "description": "the deadline passed before the request was understood"},
}


def build_http(service: Service, settings: ServingSettings) -> FastAPI:
    """The application that a gateway replica serves."""
    app = FastAPI(
        title="Recpool",
        version="1",
        description=f"Recommendations from the live release. Bodies up to {settings.max_body_bytes} bytes; "
        f"k is {settings.default_k} and the deadline {settings.default_timeout_ms:g} ms unless a request "
        "says otherwise.",
    )
    app.add_middleware(BodyLimit, max_bytes=settings.max_body_bytes)
    _add_error_handlers(app)
    _add_routes(app, service)
    return app


def _add_routes(app: FastAPI, service: Service) -> None:
    answers: dict[str, Any] = {"response_model": None, "responses": {200: {"model": Reply}, **_REFUSALS}}

    @app.post("/v1/recommend", **answers)
    async def recommend(request: RecommendRequest) -> Response:
        """The best items for a user, from the whole catalogue."""
        return _json(await service.recommend(request))

    @app.post("/v1/rank", **answers)
    async def rank(request: RankRequest) -> Response:
        """The caller's own items, best first; unknown ones last and named."""
        return _json(await service.rank(request))

    @app.post("/v1/similar", **answers)
    async def similar(request: SimilarRequest) -> Response:
        """Items like the given ones."""
        return _json(await service.similar(request))

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
    @app.exception_handler(RecpoolError)
    async def recpool_error(request: Request, error: RecpoolError) -> Response:
        if isinstance(error, OfflineError):  # names files and settings, which are no caller's business
            return await unexpected(request, error)
        headers = {"Retry-After": str(max(1, round(error.retry_after_s)))} if isinstance(error, Overloaded) else None
        field = error.field if isinstance(error, InvalidRequest) else None
        return _error(error.status, type(error).__name__, error.message, field, headers)

    @app.exception_handler(RequestValidationError)
    async def validation_error(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            return _error(400, "InvalidRequest", f"the body is not JSON: {first.get('ctx', {}).get('error', '')}", None)
        field = ".".join(map(str, _path(first["loc"][1:], error.body, first["type"] == "missing"))) or "body"
        return _error(422, "InvalidRequest", f"{field}: {first['msg']}", field)

    @app.exception_handler(Exception)
    async def unexpected(_: Request, error: Exception) -> Response:
        log.error("a request failed", exc_info=error)
        return _error(500, "InternalError", "an error of the service; its log says which", None)

    @app.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> Response:
        name = _NAMES.get(error.status_code, "Error")
        field = "body" if error.status_code == 413 else None
        return _error(error.status_code, name, str(error.detail), field, dict(error.headers or {}))


def _path(location: Sequence[int | str], body: Any, is_missing: bool) -> list[int | str]:
    """The part of a validation error's location that exists in the body; the rest names validators."""
    path: list[int | str] = []
    here = body
    for part in location:
        found: Any = dict(enumerate(here)) if isinstance(here, list) else here
        if not isinstance(found, dict) or part not in found:
            return [*path, part] if is_missing else path
        path.append(part)
        here = found[part]
    return path


class BodyLimit:
    """Refuses a body above ``max_bytes`` with 413, by its header or, when it has none, while it arrives."""

    def __init__(self, app: ASGIApp, max_bytes: int):
        self._app = app
        self._max_bytes = max_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        stated = dict(scope["headers"]).get(b"content-length", b"0")
        if stated.isdigit() and int(stated) > self._max_bytes:
            await self._refuse(scope, receive, send)
            return
        await self._pass_on(scope, receive, send)

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        arrived = 0

        async def counted() -> Message:
            nonlocal arrived
            message = await receive()
            arrived += len(message.get("body", b""))
            if arrived > self._max_bytes:
                raise HTTPException(413, self._reason)
            return message

        await self._app(scope, counted, send)

    async def _refuse(self, scope: Scope, receive: Receive, send: Send) -> None:
        await _error(413, "InvalidRequest", self._reason, "body")(scope, receive, send)

    @property
    def _reason(self) -> str:
        return f"body: larger than {self._max_bytes} bytes; send fewer ids"


def _json(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(orjson.dumps(value), status, headers, media_type="application/json")


def _error(status: int, name: str, message: str, field: str | None, headers: dict[str, str] | None = None) -> Response:
    # A message may quote input with lone surrogates, which UTF-8 cannot carry.
    body = {"type": name, "message": message.encode("utf-8", "replace").decode(), "field": field}
    return _json({"error": body}, status, headers)
