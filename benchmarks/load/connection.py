"""The load generator's side of one keep-alive HTTP/1.1 connection, with as little parsing as an answer needs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, NamedTuple, cast

NO_BODY = (204, 304)
HEAD_END = b"\r\n\r\n"


class Reply(NamedTuple):
    """One answer. `reusable`: whether the connection may carry another request."""

    status: int
    body: bytes
    reusable: bool


class Malformed(ValueError):
    """The peer does not speak HTTP/1.x."""


def parse_reply(data: bytes, *, closed: bool = False) -> Reply | None:
    """The answer that `data` holds; None while it is incomplete.

    Knows Content-Length, chunked transfer, and a body that ends with the connection (`closed`).
    Raises Malformed for anything that is no answer, and for bytes behind its end: nothing is pipelined.
    """
    end = data.find(HEAD_END)
    if end < 0:
        if len(data) >= 5 and not data.startswith(b"HTTP/"):
            raise Malformed(f"an answer began with {data[:20]!r}")
        return None
    head = data[:end].lower()
    try:
        status = int(head[9:12])
    except ValueError:
        raise Malformed(f"no status in {head[:40]!r}") from None
    start = end + len(HEAD_END)
    if status < 200:  # interim: the answer follows
        return parse_reply(data[start:], closed=closed)
    reusable = not closed and head.startswith(b"http/1.1") and b"\r\nconnection: close" not in head
    if status in NO_BODY:
        return Reply(status, b"", reusable)
    length = _header(head, b"\r\ncontent-length:")
    if length is not None:
        stop = start + int(length)
        if len(data) > stop:
            raise Malformed(f"{len(data) - stop} bytes behind the end of an answer")
        return Reply(status, data[start:], reusable) if len(data) == stop else None
    if b"\r\ntransfer-encoding: chunked" in head:
        body = _chunks(data, start)
        return None if body is None else Reply(status, body, reusable)
    return Reply(status, data[start:], False) if closed else None


def _header(head: bytes, name: bytes) -> bytes | None:
    found = head.find(name)
    if found < 0:
        return None
    begin = found + len(name)
    end = head.find(b"\r\n", begin)
    return head[begin : end if end >= 0 else len(head)].strip()


def _chunks(data: bytes, at: int) -> bytes | None:
    """The body whose first chunk begins at `at`; None while the last chunk is not there. Trailers are ignored."""
    parts = []
    while True:
        line_end = data.find(b"\r\n", at)
        if line_end < 0:
            return None
        size = int(data[at:line_end].split(b";", 1)[0], 16)
        at = line_end + 2
        if size == 0:
            whole = data.startswith(b"\r\n", at) or data.find(HEAD_END, at) >= 0
            return b"".join(parts) if whole else None
        if len(data) < at + size + 2:
            return None
        parts.append(data[at : at + size])
        at += size + 2


class Connection(asyncio.Protocol):
    """Carries one request at a time.

    Args:
        answered: called with this connection and the reply.
        lost: called when the connection ends; `task` is the request that stays without an answer, if any.
    """

    __slots__ = ("_answered", "_buffer", "_lost", "is_open", "task", "transport")

    def __init__(self, answered: Callable[[Connection, Any, Reply], None], lost: Callable[[Connection, Any], None]):
        self._answered = answered
        self._lost = lost
        self._buffer = b""
        self.is_open = False
        self.task: Any = None
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)
        self.is_open = True

    def send(self, task: Any, request: bytes) -> None:
        assert self.transport is not None and self.task is None
        self.task = task
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._buffer = self._buffer + data if self._buffer else data
        try:
            reply = parse_reply(self._buffer)
        except ValueError:  # no HTTP, or a length that is no number: as good as no answer
            self.abort()
            return
        if reply is not None:
            self._finish(reply)

    def eof_received(self) -> bool:
        if self.task is not None and self._buffer:
            try:
                reply = parse_reply(self._buffer, closed=True)
            except ValueError:
                reply = None
            if reply is not None:
                self._finish(reply)
        return False  # the transport closes itself

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_open = False
        task, self.task = self.task, None
        self._lost(self, task)

    def abort(self) -> None:
        if self.transport is not None:
            self.is_open = False
            self.transport.abort()

    def _finish(self, reply: Reply) -> None:
        task, self.task, self._buffer = self.task, None, b""
        if task is None:  # an answer nobody asked for
            self.abort()
            return
        if not reply.reusable:
            self.abort()
        self._answered(self, task, reply)
