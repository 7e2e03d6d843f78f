"""How a request for the pool is read: who may change it, and that what it says is checked once and strictly."""

from __future__ import annotations

import hmac
import re
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_type_hints

from fastapi import APIRouter, Request, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect

from configs.errors import InvalidRequest
from deployments.pool_rules import checked_name, is_loopback
from serving.posts import check_type, read_body

GONE = 499
"""Nobody reads it: the client has left."""
NEITHER = ["HEAD", "OPTIONS", "PUT", "PATCH", "DELETE", "TRACE", "CONNECT", "QUERY"]


@dataclass(frozen=True)
class AdminRule:
    """Who may change the pool: whoever has the token, and anybody on a machine that alone can reach the service.

    Attributes:
        host: the address that the service listens on.
        token_file: holds the token; without it nobody from outside may.
    """

    host: str
    token_file: Path

    @property
    def needs_token(self) -> bool:
        """Whether other machines reach the service."""
        return not is_loopback(self.host)

    def check(self, request: Request) -> None:
        """Raises HTTPException (401) with what to do.

        A request that knows this machine by another name was sent through a proxy, or by a page whose own name
        was pointed at this machine; neither is proof of being on it.
        """
        asked = re.sub(r":\d*$", "", request.headers.get("host", ""))
        if not self.needs_token and is_loopback(asked):
            return
        if not self._is_token(request.headers.get("authorization", "")):
            raise HTTPException(
                401,
                "changes of the pool need the header `Authorization: Bearer <token>`; the token is in the file "
                "run/token of the service's home, readable by whoever started it",
                {"WWW-Authenticate": "Bearer"},
            )

    def _is_token(self, header: str) -> bool:
        scheme, _, given = header.partition(" ")
        try:
            token = self.token_file.read_text(encoding="utf-8").strip()
        except OSError:
            return False
        is_right = hmac.compare_digest(given.strip().encode(), token.encode())
        return is_right and bool(token) and scheme.lower() == "bearer"


Explain = Callable[[type, InvalidRequest], Awaitable[InvalidRequest]]
"""What was to be read, and why it was refused; and back what is told."""


def checked_route(rule: AdminRule, max_bytes: int, explain: Explain) -> type[APIRoute]:
    """A kind of route that FastAPI documents by the signature of its endpoint, and that is answered here.

    FastAPI would take true for 1 and "5" for 5, and tell what is wrong in another form than the other routes. The
    endpoint is called with ``name`` when the path has one, and with ``body`` when it takes one. POSTs are changes.
    """

    class CheckedRoute(APIRoute):
        def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
            endpoint, model = self.endpoint, get_type_hints(self.endpoint).get("body")

            async def answer(request: Request) -> Response:
                if request.method == "POST":
                    rule.check(request)
                given: dict[str, Any] = {}
                if "name" in request.path_params:
                    given["name"] = checked_name(request.path_params["name"])
                if model is not None:
                    check_type(request.headers.get("content-type", "").encode())
                    try:
                        given["body"] = read_body(model, await _read(request, max_bytes), strict=True)
                    except InvalidRequest as error:
                        raise await explain(model, error) from None
                    except ClientDisconnect:
                        return Response(status_code=GONE)
                return await endpoint(**given)

            return answer

    return CheckedRoute


async def _read(request: Request, max_bytes: int) -> bytes:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > max_bytes:
            raise HTTPException(413, f"body: larger than {max_bytes} bytes")
    return body


def refuse_other_methods(router: APIRouter, path: str) -> None:
    """For a path with a route for GET and one for POST: Starlette would name the methods of the first alone."""

    @router.api_route(path, methods=NEITHER, include_in_schema=False)
    async def other() -> Response:
        raise HTTPException(405, headers={"Allow": "GET, POST"})
