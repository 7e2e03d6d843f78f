"""HAProxy as Serve and our launcher configure it, with stand-ins for replicas behind it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
from ray.serve.config import HTTPOptions

from configs.ingress_settings import IngressSettings
from deployments import processes
from deployments.haproxy import LAUNCHER, haproxy_rules, write_launcher
from deployments.haproxy_launcher import CURRENT

CALM = {"check_ms": 10_000}
"""A test that is not about checks should not turn on how busy the machine is."""
CALL = {"url": "/v1/recommend", "json": {"k": 1}}
PROCESS = """
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        self.do_GET()

    def do_GET(self):
        self.send_response(200)
        self.send_header("Content-Length", "7")
        self.end_headers()
        self.wfile.write(b"process")

    def log_message(self, *_):
        pass

server = ThreadingHTTPServer(("127.0.0.1", 0), Answer)
print(server.server_port, flush=True)
server.serve_forever()
"""
"""A replica that is a process of its own."""


class Replica:
    """Answers health checks, and every other request by `answer`; keeps the heads of those requests."""

    def __init__(self, answer: Callable[[Replica, bytes], Awaitable[bytes | None]]):
        self._answer = answer
        self.heads: list[bytes] = []
        self.now = self.most = 0
        self.hung = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                length = int(head.partition(b"content-length:")[2].partition(b"\r\n")[0] or 0)
                await reader.readexactly(length)
                reply = await self._reply(head)
                if reply is None:
                    break
                writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(reply), reply))
        writer.close()

    async def _reply(self, head: bytes) -> bytes | None:
        if head.startswith(b"get /-/healthz"):
            while self.hung:
                await asyncio.sleep(0.02)
            return b"success"
        self.heads.append(head)
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            return await self._answer(self, head)
        finally:
            self.now -= 1


async def at_once(replica: Replica, head: bytes) -> bytes:
    return header(head, "idempotency-key").encode()


async def hangs(replica: Replica, head: bytes) -> bytes:
    await asyncio.sleep(30)
    return b""


async def dies(replica: Replica, head: bytes) -> None:
    return None


def header(head: bytes, name: str) -> str:
    return head.decode().partition(f"\r\n{name}: ")[2].partition("\r\n")[0]


def free_ports(count: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def end(folder: Path, *started: subprocess.Popen) -> None:
    """End HAProxy, and what stands in for it."""
    (folder / CURRENT).unlink(missing_ok=True)  # or its guard would start another
    for process in started:
        process.kill()
        process.wait()
    for process in processes.daemons_using(folder):
        process.kill()


@contextlib.asynccontextmanager
async def ingress(
    folder: Path,
    replicas: Sequence[Replica],
    settings: IngressSettings | None = None,
    others: Sequence[int] = (),
    shadows: bool = False,
    **rules: Any,
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of HAProxy in front of these replicas, and of others that listen on some port already.

    Args:
        shadows: some of them may stand by.
        rules: fields of `Rules` that are other than the settings give.
    """
    settings = settings or IngressSettings(**CALM)
    front, stats, metrics, *ports = free_ports(3 + len(replicas))
    write_launcher(folder, replace(haproxy_rules(settings, stats, metrics, shadows), **rules))
    servers = [ServerConfig(name=f"r{i}", host="127.0.0.1", port=port) for i, port in enumerate([*ports, *others])]
    api = HAProxyApi(
        HAProxyConfig(
            http_options=HTTPOptions(host="127.0.0.1", port=front),
            socket_path=str(folder / "s"),
            server_state_base=str(folder),
            server_state_file=str(folder / "state"),
            stats_port=stats,
            metrics_port=metrics,
            metrics_enabled=False,
            timeout_server_s=2,
            retry_on="conn-failure empty-response response-timeout 502 503",
            retries=3,
            health_check_inter=f"{settings.check_ms}ms",
            health_check_fall=3,
            is_head=True,
        ),
        {"http-recpool": BackendConfig(name="http-recpool", path_prefix="/", servers=servers, app_name="recpool")},
        config_file_path=str(folder / "haproxy.cfg"),
    )
    api._generate_config_file_internal()
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=f"http://127.0.0.1:{front}", timeout=20))
        for replica, port in zip(replicas, ports, strict=True):
            stack.callback((await asyncio.start_server(replica.serve, "127.0.0.1", port)).close)
        process = subprocess.Popen([folder / LAUNCHER, "-db", "-f", folder / "haproxy.cfg"])
        stack.callback(end, folder, process)
        for _ in range(200):
            with contextlib.suppress(httpx.HTTPError):
                await client.get("/-/healthz")
                break
            await asyncio.sleep(0.05)
        yield client


async def until(ask: Callable[[], Awaitable[object]], wanted: object) -> None:
    async with asyncio.timeout(20):
        while await ask() != wanted:
            await asyncio.sleep(0.05)
