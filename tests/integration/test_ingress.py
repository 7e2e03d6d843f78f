"""HAProxy with the configuration that Serve generates and our launcher rewrites, in front of stand-ins for replicas."""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import httpx
import psutil
from ray.serve._private.haproxy import BackendConfig, HAProxyApi, HAProxyConfig, ServerConfig
from ray.serve.config import HTTPOptions

from configs.ingress_settings import IngressSettings
from deployments import processes
from deployments.haproxy import LAUNCHER, haproxy_rules, write_launcher
from deployments.haproxy_launcher import CURRENT, FAILED_START_S
from serving.schemas import MAX_TIMEOUT_MS

CALM = {"check_ms": 10_000}
"""A test that is not about checks should not turn on how busy the machine is."""
CALL = {"url": "/v1/recommend", "json": {"k": 1}}


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
    folder: Path, replicas: Sequence[Replica], settings: IngressSettings | None = None
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of HAProxy in front of these replicas."""
    settings = settings or IngressSettings(**CALM)
    front, stats, metrics, *ports = free_ports(3 + len(replicas))
    write_launcher(folder, haproxy_rules(settings, stats, metrics))
    servers = [ServerConfig(name=f"r{i}", host="127.0.0.1", port=port) for i, port in enumerate(ports)]
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


async def test_a_call_that_a_replica_hangs_on_is_answered_by_another_under_the_same_key(tmp_path):
    hung, good = Replica(hangs), Replica(at_once)
    async with ingress(tmp_path, [hung, good]) as client:
        for _ in range(2):  # on a connection that is kept, too
            began = time.monotonic()
            reply = await client.post(**CALL)
            took_s = time.monotonic() - began
            assert reply.status_code == 200
            assert reply.text == header(good.heads[-1], "idempotency-key")
            if hung.heads:
                assert header(hung.heads[-1], "idempotency-key") == reply.text
                assert took_s > MAX_TIMEOUT_MS / 1000
    assert len(good.heads) == 2
    assert hung.heads


async def test_a_call_that_a_replica_dies_with_is_answered_by_another(tmp_path):
    dead, good = Replica(dies), Replica(at_once)
    async with ingress(tmp_path, [dead, good]) as client:
        replies = [await client.post(**CALL) for _ in range(6)]
    assert [reply.status_code for reply in replies] == [200] * 6
    keys = [header(head, "idempotency-key") for head in good.heads]
    assert [reply.text for reply in replies] == keys
    assert len(set(keys)) == 6
    assert dead.heads and {header(head, "idempotency-key") for head in dead.heads} <= set(keys)


async def test_a_callers_own_key_is_passed_on_and_the_time_of_arrival_is_told(tmp_path):
    replica = Replica(at_once)
    async with ingress(tmp_path, [replica]) as client:
        began_ms = time.time() * 1000
        assert (await client.post(**CALL, headers={"Idempotency-Key": "mine"})).text == "mine"
    assert began_ms - 1 <= float(header(replica.heads[0], "x-request-start").removeprefix("t=")) <= time.time() * 1000


async def test_a_replica_that_hangs_is_taken_out_and_comes_back(tmp_path):
    stalled, good = Replica(at_once), Replica(at_once)
    async with ingress(tmp_path, [stalled, good], IngressSettings(check_ms=50)) as client:

        async def is_used() -> bool:
            before = len(stalled.heads)
            await asyncio.gather(*(client.post(**CALL) for _ in range(10)))
            return len(stalled.heads) > before

        assert await is_used()
        stalled.hung = True
        await until(is_used, False)
        stalled.hung = False
        await until(is_used, True)


async def until(ask: Callable[[], Awaitable[object]], wanted: object) -> None:
    async with asyncio.timeout(20):
        while await ask() != wanted:
            await asyncio.sleep(0.05)


class Held:
    """An answer that waits until it is let go."""

    def __init__(self) -> None:
        self.go = asyncio.Event()

    async def __call__(self, replica: Replica, head: bytes) -> bytes:
        await self.go.wait()
        return header(head, "x-priority").encode()


async def queued(folder: Path) -> int:
    """Calls that wait in HAProxy."""
    reader, writer = await asyncio.open_unix_connection(str(folder / "s"))
    writer.write(b"show stat\n")
    rows = [line.split(",") for line in (await reader.read()).decode().splitlines()]
    writer.close()
    return next(int(row[2]) for row in rows if row[:2] == ["http-recpool", "BACKEND"])


async def test_a_replica_is_given_a_bounded_number_at_a_time_and_urgent_calls_first(tmp_path):
    held = Held()
    replica = Replica(held)
    settings = IngressSettings(max_inflight=1, max_queued_ms=10_000, **CALM)
    async with ingress(tmp_path, [replica], settings) as client:

        async def call(priority: str) -> None:
            calls.append(asyncio.create_task(client.post(**CALL, headers={"X-Priority": priority})))

        calls: list[asyncio.Task[httpx.Response]] = []
        for count, priority in enumerate(["first", "low", "low", "normal", "normal", "high", "high"]):
            await call(priority)
            await until(lambda: queued(tmp_path), count)
        held.go.set()
        replies = await asyncio.gather(*calls)
    assert [reply.status_code for reply in replies] == [200] * 7
    assert replica.most == 1
    order = [header(head, "x-priority") for head in replica.heads]
    assert order == ["first", "high", "high", "normal", "normal", "low", "low"]


async def test_beyond_the_queue_calls_are_refused_at_once_the_urgent_last_and_status_never(tmp_path):
    held = Held()
    settings = IngressSettings(max_inflight=1, max_queued=4, max_queued_ms=10_000, **CALM)
    async with ingress(tmp_path, [Replica(held)], settings) as client:
        waiting = [asyncio.create_task(client.post(**CALL)) for _ in range(5)]
        await until(lambda: queued(tmp_path), 4)
        for priority in ("normal", "low"):
            refused = await client.post(**CALL, headers={"X-Priority": priority})
            assert refused.status_code == 429
            assert refused.headers["Retry-After"] == "1"
            assert refused.json()["error"]["type"] == "Overloaded"
        waiting.append(asyncio.create_task(client.post(**CALL, headers={"X-Priority": "high"})))
        waiting.append(asyncio.create_task(client.get("/v1/status")))
        await until(lambda: queued(tmp_path), 6)
        held.go.set()
        assert [reply.status_code for reply in await asyncio.gather(*waiting)] == [200] * 7


async def test_a_call_that_waited_too_long_is_told_so_as_every_refusal_is(tmp_path):
    held = Held()
    replica = Replica(held)
    async with ingress(tmp_path, [replica], IngressSettings(max_inflight=1, max_queued_ms=50, **CALM)) as client:
        first = asyncio.create_task(client.post(**CALL))
        async with asyncio.timeout(20):
            while not replica.heads:
                await asyncio.sleep(0.01)
        late = await client.post(**CALL)
        held.go.set()
        await first
    assert late.status_code == 503
    error = late.json()["error"]
    assert error.pop("message")
    assert error == {"type": "Unavailable", "field": None}


def haproxies(folder: Path) -> set[int]:
    return {process.pid for process in processes.daemons_using(folder)}


async def test_haproxy_that_is_killed_is_stood_in_for_until_its_successor_takes_over(tmp_path):
    async with ingress(tmp_path, [Replica(at_once)]) as client:

        async def answers() -> bool:
            with contextlib.suppress(httpx.TransportError):
                return (await client.post(**CALL)).status_code == 200
            return False

        (first,) = haproxies(tmp_path)
        await asyncio.sleep(FAILED_START_S)  # one that ends sooner is one that never served
        for _ in range(2):  # a stand-in is stood in for as well
            (victim,) = haproxies(tmp_path)
            psutil.Process(victim).kill()
            await until(answers, True)
            await asyncio.sleep(FAILED_START_S)
        assert not await is_served_by(tmp_path / "s", first)  # so that Serve starts another

        config = tmp_path / "haproxy.cfg"
        config.write_text(without_routes(config.read_text()))  # all that Serve knows at first
        successor = subprocess.Popen([tmp_path / LAUNCHER, "-db", "-f", tmp_path / "haproxy.cfg"])
        try:
            for _ in range(100):
                assert await answers()
                if haproxies(tmp_path) == {successor.pid}:
                    break
                await asyncio.sleep(0.05)
            assert haproxies(tmp_path) == {successor.pid}
            assert await is_served_by(tmp_path / "s", successor.pid)
        finally:
            end(tmp_path, successor)


def without_routes(config: str) -> str:
    head, _, rest = config.partition("backend http-recpool\n")
    assert rest
    return (
        re.sub(r"^ *use_backend .*\n", "", head, flags=re.MULTILINE)
        + "listen stats"
        + rest.partition("listen stats")[2]
    )


async def is_served_by(socket: Path, pid: int) -> bool:
    with contextlib.suppress(OSError):
        reader, writer = await asyncio.open_unix_connection(str(socket))
        writer.write(b"show info\n")
        said = await reader.read()
        writer.close()
        return f"\nPid: {pid}\n" in said.decode()
    return False
