"""The traffic's way past Serve's own handling of each request, which costs more than answering a batch's share of it.

Serve lets middlewares stand in front of a replica's HTTP server (`RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH`).
Ours hands calls straight to the gateway in the same process. What Serve would have done for them is done here or not
missed: a call whose client leaves is dropped, the gateway counts its calls itself, and a replica that is told to
stop still finishes what it has. Without the variable everything works the same, only slower.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Protocol

from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

log = logging.getLogger("recpool.express")
IMPORT_PATH = "deployments.express:middlewares"


class Answering(Protocol):
    """An ASGI application that says which calls are for it."""

    def answers(self, scope: Scope) -> bool: ...

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None: ...


_here: list[Answering] = []


def register(posts: Answering) -> None:
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
    """Cancels the running task once the client has gone; begins when the body is there.

    The call that waits for the client to leave is driven by hand: a task for it, begun and cancelled with every
    request, costs more than all else here. It may wait for futures, as uvicorn's does, and for nothing that
    needs a task of its own.
    """

    def __init__(self, receive: Receive):
        self._receive = receive
        self._task = asyncio.current_task()
        self._next: Any = None
        self.has_left = False

    async def receive(self) -> Message:
        message = await self._receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        if self._next is None and not message.get("more_body", False):
            self._next = self._receive()
            self._go_on()
        return message

    def _go_on(self, _: object = None) -> None:
        """Up to the next future that the client's next message waits for."""
        while self._next is not None:
            try:
                waits_for = self._next.send(None)
            except StopIteration as came:
                self._next = None
                if came.value["type"] == "http.disconnect":
                    self._leave()
                else:
                    self._next = self._receive()
            except Exception as error:  # the server's own; the reply will meet it too
                self._next = None
                log.debug("no word whether the client is still there", exc_info=error)
            else:
                waits_for._asyncio_future_blocking = False
                waits_for.add_done_callback(self._go_on)
                return

    def _leave(self) -> None:
        self.has_left = True
        if self._task is not None:
            self._task.cancel()

    def stop(self) -> None:
        if self._next is not None:
            self._next.close()
            self._next = None
