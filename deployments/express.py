"""The traffic's way past Serve's own handling of each request, which costs more than answering a batch's share of it.

Serve lets middlewares stand in front of a replica's HTTP server (`RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH`).
Ours hands calls straight to the gateway in the same process. What Serve would have done for them is done here or not
missed: a call whose client leaves is dropped, the gateway counts its calls itself, and a replica that is told to
stop still finishes what it has. Without the variable everything works the same, only slower.
"""

from __future__ import annotations

import asyncio

from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.posts import Posts

IMPORT_PATH = "deployments.express:middlewares"

_here: list[Posts] = []


def register(posts: Posts) -> None:
    """Let this process's gateway answer calls; the one registered last does."""
    _here[:] = [posts]


def middlewares() -> list[Middleware]:
    """What Serve asks for when it starts an HTTP server."""
    return [Middleware(Express)]


class Express:
    """Calls to the gateway of this process, if there is one; everything else to Serve."""

    def __init__(self, app: ASGIApp):
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        posts = _here[0] if _here else None
        if posts is None or not posts.answers(scope):
            await self._app(scope, receive, send)
            return
        watch = _Watch(receive)
        try:
            await posts(scope, watch.receive, send)
        except asyncio.CancelledError:
            if not watch.has_left:
                raise
        finally:
            watch.stop()


class _Watch:
    """Cancels the running task once the client has gone; begins when the body is there."""

    def __init__(self, receive: Receive):
        self._receive = receive
        self._task = asyncio.current_task()
        self._waiting: asyncio.Task[None] | None = None
        self.has_left = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        if not message.get("more_body", False) and self._waiting is None:
            self._waiting = asyncio.get_running_loop().create_task(self._await_leaving())
        return message

    async def _await_leaving(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self.has_left = True
        if self._task is not None:
            self._task.cancel()

    def stop(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
