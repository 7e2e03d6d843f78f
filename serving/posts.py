"""The routes that carry the traffic, without a framework in between.

A framework's layers cost ten times what reading and checking a body costs. Here a body is read up to
the limit, checked once by its model, and answered; everything else goes on to the application behind.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import orjson
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from configs.errors import InvalidRequest
from serving.schemas import NO_HEADERS, CallHeaders

Body = TypeVar("Body", bound=BaseModel)
_HEADERS = {(field.alias or name).lower().encode(): name for name, field in CallHeaders.model_fields.items()}


@dataclass(frozen=True)
class Post:
    """What a path takes, who answers (``await answer(request=body, headers=CallHeaders)``), and with what."""

    body: type[BaseModel]
    answer: Callable[..., Awaitable[Response]]
    reply: type[BaseModel]


class JsonReply(Response):
    """A value as JSON. Starlette's constructor would spend on its headers what writing the JSON takes."""

    def __init__(self, value: Any, status_code: int = 200, headers: Mapping[str, str] | None = None):
        self.body = orjson.dumps(value)
        self.status_code = status_code
        self.background = None
        self.raw_headers = [(b"content-length", b"%d" % len(self.body)), (b"content-type", b"application/json")]
        if headers:
            self.raw_headers += [(name.lower().encode(), text.encode("latin-1")) for name, text in headers.items()]


class Posts:
    """An ASGI application that answers POSTs to some paths and hands the rest to ``app``.

    Args:
        max_bytes: bodies above it are refused with 413, by their header or, without one, while they arrive.
        refusal: the reply to an error, whatever it is.
    """

    def __init__(self, app: ASGIApp, posts: Mapping[str, Post], max_bytes: int, refusal: Callable[..., Response]):
        self._app = app
        self._posts = posts
        self._max_bytes = max_bytes
        self._refusal = refusal

    def answers(self, scope: Scope) -> bool:
        """Whether it is one of these requests, which ``app`` does not see."""
        return scope["type"] == "http" and scope["method"] == "POST" and scope["path"] in self._posts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self.answers(scope):
            await self._app(scope, receive, send)
            return
        post = self._posts[scope["path"]]
        try:
            headers = dict(scope["headers"])
            check_type(headers.get(b"content-type", b""))
            called = read_headers(headers)
            body = await self._read(receive, headers.get(b"content-length", b""))
            reply = await post.answer(request=read_body(post.body, body), headers=called)
        except ClientDisconnect:
            return
        except Exception as error:  # the edge of the process: each is told to its caller, or logged
            reply = self._refusal(error)
        await reply(scope, receive, send)

    async def _read(self, receive: Receive, stated: bytes) -> bytes:
        if stated.isdigit() and int(stated) > self._max_bytes:
            raise self._too_large()
        body = b""
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            body += message.get("body", b"")
            if len(body) > self._max_bytes:
                raise self._too_large()
            if not message.get("more_body", False):
                return body

    def _too_large(self) -> HTTPException:
        return HTTPException(413, f"body: larger than {self._max_bytes} bytes; send fewer ids")


def read_body(model: type[Body], body: bytes, strict: bool | None = None) -> Body:
    """The checked body.

    Args:
        strict: take neither text nor true for a number, whatever the model says; absent: as the model says.
    Raises:
        HTTPException: 400, it is not JSON. InvalidRequest: it is, but breaks the contract; names the field.
    """
    try:
        return model.model_validate_json(body, strict=strict)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "json_invalid":
            raise HTTPException(400, f"the body is not JSON: {first.get('ctx', {}).get('error', '')}") from None
        path = _path(first["loc"], json.loads(body), first["type"] == "missing")
        raise _wrong(".".join(map(str, path)) or "body", first["msg"]) from None


def read_headers(headers: Mapping[bytes, bytes]) -> CallHeaders:
    """Raises InvalidRequest naming the header that is wrong."""
    given = {name: headers[header].decode("latin-1") for header, name in _HEADERS.items() if header in headers}
    if not given:
        return NO_HEADERS
    try:
        return CallHeaders.model_validate(given, by_name=True)
    except ValidationError as error:
        first = error.errors()[0]
        raise _wrong(CallHeaders.model_fields[str(first["loc"][0])].alias or "headers", first["msg"]) from None


def _wrong(field: str, message: str) -> InvalidRequest:
    return InvalidRequest(f"{field}: {message}", field)


def check_type(content_type: bytes) -> None:
    """Raises HTTPException (415) for what is not said to be JSON."""
    # A page of another origin can send any body to a local service, but not this type without being allowed to.
    if content_type.split(b";")[0].strip().lower() != b"application/json":
        raise HTTPException(415, "the body must be JSON; send the header content-type: application/json")


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
