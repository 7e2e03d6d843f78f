"""Calls handed straight to the gateway, with a server's messages made by hand."""

from __future__ import annotations

import asyncio

import pytest
from starlette.responses import Response

from deployments.express import Express, register
from serving.posts import Post, Posts
from serving.schemas import RecommendRequest, Reply

HEADERS = [(b"content-type", b"application/json")]
SCOPE = {"type": "http", "method": "POST", "path": "/v1/recommend", "headers": HEADERS}
WHOLE = {"type": "http.request", "body": b"{}", "more_body": False}
LEFT = {"type": "http.disconnect"}


class Server:
    """Hands over messages as they are put, the way a server does: each `receive` waits for the next one."""

    def __init__(self, *messages):
        self.messages = asyncio.Queue()
        self.waiting = 0
        self.sent = []
        for message in messages:
            self.messages.put_nowait(message)

    async def receive(self):
        self.waiting += 1
        try:
            return await self.messages.get()
        finally:
            self.waiting -= 1

    async def send(self, message):
        self.sent.append(message)


class Gateway:
    """Answers once ``gate`` is open; says whether a call was cancelled."""

    def __init__(self):
        self.gate = asyncio.Event()
        self.asked = self.cancelled = 0
        posts = {"/v1/recommend": Post(RecommendRequest, self.answer, Reply)}
        register(Posts(self.behind, posts, 100, lambda error: Response(str(error), 500)))

    async def answer(self, request, headers):
        self.asked += 1
        try:
            await self.gate.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Response(b"slate")

    async def behind(self, scope, receive, send):
        raise AssertionError("Serve's own application is asked first")


async def of_serve(scope, receive, send):
    await send({"type": "of serve"})


@pytest.fixture
async def gateway():
    yield Gateway()
    register(Posts(of_serve, {}, 100, lambda error: Response()))


async def turn() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_call_is_answered_and_nobody_is_left_waiting_for_the_client(gateway):
    gateway.gate.set()
    server = Server({"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.request", "body": b"}"})
    await Express(of_serve)(SCOPE, server.receive, server.send)
    assert [message.get("status", message.get("body")) for message in server.sent] == [200, b"slate"]
    assert server.waiting == 0


async def test_a_call_whose_client_leaves_is_dropped_without_a_reply(gateway):
    server = Server(WHOLE)
    call = asyncio.create_task(Express(of_serve)(SCOPE, server.receive, server.send))
    await turn()
    assert (gateway.asked, server.waiting) == (1, 1)
    server.messages.put_nowait(WHOLE)  # something else than the end is no reason
    await turn()
    assert not call.done()
    server.messages.put_nowait(LEFT)
    await asyncio.wait_for(call, 10)
    assert (gateway.cancelled, server.sent, server.waiting) == (1, [], 0)


async def test_a_client_that_leaves_with_its_last_byte_is_noticed(gateway):
    server = Server(WHOLE, LEFT)
    await asyncio.wait_for(Express(of_serve)(SCOPE, server.receive, server.send), 10)
    assert server.sent == []


async def test_a_client_that_leaves_before_its_body_is_whole_is_not_asked_for(gateway):
    server = Server({"type": "http.request", "body": b"{", "more_body": True}, LEFT)
    await asyncio.wait_for(Express(of_serve)(SCOPE, server.receive, server.send), 10)
    assert (gateway.asked, server.sent) == (0, [])


async def test_a_call_that_the_server_itself_ends_says_so(gateway):
    server = Server(WHOLE)
    call = asyncio.create_task(Express(of_serve)(SCOPE, server.receive, server.send))
    await turn()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert server.waiting == 0


async def test_a_server_that_fails_to_say_more_does_not_cost_the_reply(gateway):
    server = Server(WHOLE)

    async def receive():
        message = await server.receive()
        if message is None:
            raise OSError("no more")
        return message

    call = asyncio.create_task(Express(of_serve)(SCOPE, receive, server.send))
    await turn()
    server.messages.put_nowait(None)
    await turn()
    gateway.gate.set()
    await asyncio.wait_for(call, 10)
    assert server.sent[-1]["body"] == b"slate"


@pytest.mark.parametrize("other", [{"method": "GET"}, {"path": "/v1/status"}, {"type": "websocket"}])
async def test_everything_else_is_for_serve(gateway, other):
    server = Server()
    await Express(of_serve)({**SCOPE, **other}, server.receive, server.send)
    assert server.sent == [{"type": "of serve"}]
