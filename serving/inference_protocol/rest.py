"""The REST side of the Open Inference Protocol, with Triton's extensions, as an ASGI application below ``/v2``."""

from __future__ import annotations

import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import orjson
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from configs.errors import (
    Conflict,
    DeadlineExceeded,
    InvalidRequest,
    NotFound,
    OfflineError,
    Overloaded,
    RecpoolError,
    Unavailable,
)
from serving.inference_protocol.config import as_json
from serving.inference_protocol.dataplane import DataPlane, Unsupported
from serving.inference_protocol.metrics import METRICS_TYPE, metrics_text
from serving.inference_protocol.rest_body import HEADER_LENGTH, Body, compressed, decompressed, parsed_object

log = logging.getLogger("recpool.inference")
PREFIX = "/v2"
STATUSES: tuple[tuple[type[RecpoolError], int], ...] = (
    (InvalidRequest, 400),
    (NotFound, 404),
    (Conflict, 409),
    (Overloaded, 503),
    (DeadlineExceeded, 503),
    (Unavailable, 503),
    (Unsupported, 501),
)
"""As Triton maps its errors to HTTP; everything else is 500."""
_MODEL = re.compile(r"/v2/models/([^/]+)(?:/versions/([^/]+))?(?:/(infer|ready|config|stats))?")
_REPOSITORY = re.compile(r"/v2/repository/(?:(index)|models/([^/]+)/(load|unload))")
PARAMETER_LIMIT = 65_536
"""Bytes of a body that holds parameters only."""


class Reply(NamedTuple):
    status: int = 200
    body: bytes = b""
    kind: str = "application/json"
    headers: tuple[tuple[bytes, bytes], ...] = ()


class TooLarge(Exception):
    """The body is above the limit."""


class _Call:
    """A request while it is being answered."""

    def __init__(self, scope: Scope, receive: Receive, path: str):
        self.method, self.path, self._receive = scope["method"], path, receive
        self.headers = dict(scope["headers"])

    def header(self, name: str) -> str:
        return self.headers.get(name.lower().encode(), b"").decode("latin-1").strip().lower()

    async def body(self, most: int) -> bytes:
        """Raises TooLarge, or ClientDisconnect when the caller has left."""
        stated = self.headers.get(b"content-length", b"")
        if stated.isdigit() and int(stated) > most:
            raise TooLarge
        parts, size, more = [], 0, True
        while more:
            message = await self._receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > most:
                raise TooLarge
            more = message.get("more_body", False)
        return parts[0] if len(parts) == 1 else b"".join(parts)


class RestApp:
    """Answers everything below ``/v2``.

    Args:
        max_body_bytes: of a request, compressed or not.
        check_change: called with the headers (by lower-case name) of a request that loads or unloads; raises the
            reply's error when the caller may not. Absent: everybody may who reaches the service.
    """

    def __init__(
        self,
        plane: DataPlane,
        max_body_bytes: int,
        check_change: Callable[[dict[bytes, bytes]], None] = lambda headers: None,
    ):
        self._plane, self._max_bytes, self._check_change = plane, max_body_bytes, check_change

    def answers(self, scope: Scope) -> bool:
        """Whether it is a request for this application."""
        return scope["type"] == "http" and _path(scope).startswith(PREFIX)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        call = _Call(scope, receive, _path(scope))
        try:
            reply = await self._answer(call)
        except ClientDisconnect:
            return
        except TooLarge:
            reply = _error(413, f"body: larger than {self._max_bytes} bytes")
        except Exception as error:  # the edge of the process: each is told to its caller, or logged
            reply = told(error)
        await _send(reply, send)

    async def _answer(self, call: _Call) -> Reply:
        if match := _MODEL.fullmatch(call.path):
            name, version, what = match.group(1), match.group(2) or "", match.group(3) or ""
            if name == "stats" and not version and not what:
                return _json(self._plane.statistics())
            return await self._model(call, name, version, what)
        if match := _REPOSITORY.fullmatch(call.path):
            return await self._repository(call, *match.groups())
        return self._server(call)

    def _server(self, call: _Call) -> Reply:
        gets: dict[str, Callable[[], Reply]] = {
            "/v2": lambda: _json(self._plane.server_metadata()),
            "/v2/health/live": Reply,
            "/v2/health/ready": lambda: Reply(200 if self._plane.is_ready else 400),
            "/v2/metrics": lambda: Reply(200, metrics_text(self._plane.registry.models()).encode(), METRICS_TYPE),
        }
        answer = gets.get(call.path.rstrip("/"))
        if answer is None:
            return _error(404, "Not Found")
        return answer() if call.method in ("GET", "HEAD") else _error(405, "Method Not Allowed")

    async def _model(self, call: _Call, name: str, version: str, what: str) -> Reply:
        if what == "infer":
            return await self._infer(call, name, version) if call.method == "POST" else _not_allowed("POST")
        if call.method not in ("GET", "HEAD"):
            return _not_allowed("GET")
        if what == "ready":
            return Reply(200 if self._plane.is_model_ready(name, version) else 400)
        if what == "config":
            return _json(as_json(self._plane.model_config(name, version)))
        if what == "stats":
            return _json(self._plane.statistics(name, version))
        return _json(self._plane.model_metadata(name, version))

    async def _infer(self, call: _Call, name: str, version: str) -> Reply:
        self._plane.registry.model(name, version)  # an unknown one is told before the body is looked at
        content = await call.body(self._max_bytes)
        body = Body(call.headers, decompressed(content, call.header("content-encoding"), self._max_bytes))
        model, outputs = await self._plane.infer(name, version, body.call)
        answer, length = body.reply(model, outputs)
        headers = () if length is None else ((HEADER_LENGTH.encode(), b"%d" % length),)
        kind = "application/json" if length is None else "application/octet-stream"
        answer, encoding = compressed(answer, call.header("accept-encoding"))
        if encoding:
            headers = (*headers, (b"content-encoding", encoding.encode()))
        return Reply(200, answer, kind, headers)

    async def _repository(self, call: _Call, index: str | None, name: str | None, change: str | None) -> Reply:
        if call.method != "POST":
            return _not_allowed("POST")
        if name:
            if call.header("origin"):  # a page in somebody's browser, which may reach what its reader reaches
                return _error(403, "models are not loaded or unloaded on behalf of web pages")
            self._check_change(call.headers)
        given = parsed_object(await call.body(min(self._max_bytes, PARAMETER_LIMIT)))
        if index:
            return _json(self._plane.index(bool(given.get("ready", False))))
        assert name is not None
        if change == "load":
            parameters = given.get("parameters") or {}
            await self._plane.load(name, parameters if isinstance(parameters, dict) else {"parameters": parameters})
        else:
            await self._plane.unload(name)
        return Reply()


def told(error: Exception) -> Reply:
    """The reply that tells of an error; what is no caller's business is only logged."""
    if isinstance(error, RecpoolError) and not isinstance(error, OfflineError):
        status = next((status for kind, status in STATUSES if isinstance(error, kind)), 500)
        return _error(status, error.message)
    status = getattr(error, "status_code", None)
    if isinstance(status, int):  # of a framework's own refusal
        return _error(status, str(getattr(error, "detail", "")))
    log.error("a request failed", exc_info=error)
    return _error(500, "an error of the service; its log says which")


def _path(scope: Scope) -> str:
    """Whole, whether or not the part that led here was cut off."""
    path, root = scope["path"], scope.get("root_path", "")
    return path if path.startswith(PREFIX) else root + path


def _not_allowed(method: str) -> Reply:
    return _error(405, "Method Not Allowed", ((b"allow", method.encode()),))


def _error(status: int, message: str, headers: tuple[tuple[bytes, bytes], ...] = ()) -> Reply:
    # A message may quote input with lone surrogates, which UTF-8 cannot carry.
    text = message.encode("utf-8", "replace").decode()
    return Reply(status, orjson.dumps({"error": text}), headers=headers)


def _json(value: Any) -> Reply:
    return Reply(200, orjson.dumps(value))


async def _send(reply: Reply, send: Callable[[Any], Awaitable[None]]) -> None:
    headers = [
        (b"content-type", reply.kind.encode()),
        (b"content-length", b"%d" % len(reply.body)),
        *reply.headers,
    ]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})
