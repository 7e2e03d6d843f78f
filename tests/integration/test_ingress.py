"""HAProxy with the configuration that Serve generates and our launcher rewrites, in front of stand-ins for replicas."""

from __future__ import annotations

import asyncio
import contextlib
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import psutil
import pytest

from configs.ingress_settings import IngressSettings
from deployments import processes
from deployments.haproxy import LAUNCHER
from deployments.haproxy_launcher import FAILED_STARTS, WATCH_LOG
from serving.schemas import MAX_TIMEOUT_MS
from tests.integration.ingress import CALL, CALM, PROCESS, Replica, at_once, dies, end, hangs, header, ingress, until


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


async def test_a_replica_that_a_signal_stops_is_ended_and_its_calls_are_answered_by_another(tmp_path):
    """The kernel goes on to accept connections for it, so that only its answers are missing."""
    with subprocess.Popen([sys.executable, "-c", PROCESS], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        port = int(process.stdout.readline())
        async with ingress(tmp_path, [Replica(at_once)], others=[port]) as client:
            assert {(await client.post(**CALL)).text == "process" for _ in range(4)} == {True, False}
            process.send_signal(signal.SIGSTOP)
            replies = await asyncio.gather(*(client.post(**CALL) for _ in range(6)))
            assert await asyncio.to_thread(process.wait, 30) == -signal.SIGKILL
    assert {reply.status_code for reply in replies} == {200}
    assert "process" not in {reply.text for reply in replies}
    assert f"{process.pid} was ended: a signal had stopped it" in (tmp_path / WATCH_LOG).read_text()


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

        await until(is_used, True)
        stalled.hung = True
        await until(is_used, False)
        stalled.hung = False
        await until(is_used, True)


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
    # So much later than the low ones no normal one comes, however slow the machine.
    async with ingress(tmp_path, [replica], settings, low_ms=60_000) as client:

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


async def test_haproxy_that_kept_its_place_against_a_failed_successor_is_stood_in_for(tmp_path):
    async with ingress(tmp_path, [Replica(at_once)]) as client:

        async def answers() -> bool:
            return await is_answered(client)

        (first,) = haproxies(tmp_path)
        take_over = ["-sf", str(first), "-x", tmp_path / "nowhere"]
        assert subprocess.run([tmp_path / LAUNCHER, "-db", "-f", tmp_path / "haproxy.cfg", *take_over]).returncode
        assert await answers()
        await kill_haproxy(tmp_path)
        await until(answers, True)


def haproxies(folder: Path) -> set[int]:
    return {process.pid for process in processes.daemons_using(folder)}


async def kill_haproxy(folder: Path) -> None:
    (victim,) = haproxies(folder)
    psutil.Process(victim).kill()


async def is_answered(client: httpx.AsyncClient) -> bool:
    with contextlib.suppress(httpx.TransportError):
        return (await client.post(**CALL)).status_code == 200
    return False


@pytest.mark.parametrize("reload", [False, True])
async def test_haproxy_that_is_killed_is_stood_in_for_until_its_successor_takes_over(tmp_path, reload):
    """The successor is that of a new actor, or of one that does not know yet that it died."""
    async with ingress(tmp_path, [Replica(at_once)]) as client:

        async def answers() -> bool:
            return await is_answered(client)

        (first,) = haproxies(tmp_path)
        for _ in range(FAILED_STARTS):  # a stand-in is stood in for as well, however short it lived
            await kill_haproxy(tmp_path)
            await until(answers, True)
        assert not await is_served_by(tmp_path / "s", first)  # so that Serve starts another

        config = tmp_path / "haproxy.cfg"
        config.write_text(without_routes(config.read_text()))  # all that Serve knows at first
        from_first = ["-sf", str(first), "-x", tmp_path / "s"] if reload else []
        successor = subprocess.Popen([tmp_path / LAUNCHER, "-db", "-f", tmp_path / "haproxy.cfg", *from_first])
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
