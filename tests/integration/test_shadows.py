"""HAProxy and replicas that stand by: no call until they are promoted, and every call when nobody else is left."""

from __future__ import annotations

import asyncio

import pytest

from configs.ingress_settings import IngressSettings
from deployments.ingress_roles import Announcer
from tests.integration.ingress import CALL, CALM, Replica, at_once, hangs, ingress


async def calls(client, replicas: list[Replica], count: int = 8) -> list[int]:
    """How many of some calls each replica gets."""
    before = [len(replica.heads) for replica in replicas]
    replies = await asyncio.gather(*(client.post(**CALL) for _ in range(count)))
    assert [reply.status_code for reply in replies] == [200] * count
    return [len(replica.heads) - old for replica, old in zip(replicas, before, strict=True)]


async def test_roles_are_found_at_the_start_and_changed_at_run_time(tmp_path):
    announce, replicas = Announcer(tmp_path), [Replica(at_once), Replica(at_once)]
    announce({"r0": False, "r1": True})
    async with ingress(tmp_path, replicas, shadows=True) as client:
        assert await calls(client, replicas) == [8, 0]
        announce({"r0": False, "r1": False})
        assert min(await calls(client, replicas)) > 0
        announce({"r0": True, "r1": False})
        assert await calls(client, replicas) == [0, 8]


@pytest.mark.parametrize(("dying", "count"), [(1, 4), (5, 1)])
async def test_when_all_that_serve_are_gone_a_shadow_answers_although_nobody_promotes_it(tmp_path, dying, count):
    serving, shadow = Replica(hangs), Replica(at_once)
    lines: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        lines.append(writer)
        await serving.serve(reader, writer)

    servers = [await asyncio.start_server(serve, "127.0.0.1", 0) for _ in range(dying)]
    ports = [server.sockets[0].getsockname()[1] for server in servers]
    Announcer(tmp_path)({"r0": True} | {f"r{number}": False for number in range(1, dying + 1)})
    settings = IngressSettings(max_inflight=1, max_queued_ms=10_000, **CALM)
    async with ingress(tmp_path, [shadow], settings, others=ports, shadows=True) as client:
        waiting = [asyncio.create_task(client.post(**CALL)) for _ in range(count)]
        async with asyncio.timeout(20):
            while not serving.heads:
                await asyncio.sleep(0.01)
        assert not shadow.heads
        for server in servers:
            server.close()
        for writer in lines:  # as the kernel does when the process dies
            writer.transport.abort()
        replies = await asyncio.gather(*waiting)
        assert [reply.status_code for reply in replies] == [200] * count
        assert len(shadow.heads) == count
        assert await calls(client, [shadow]) == [8]


async def test_without_roles_all_serve(tmp_path):
    replicas = [Replica(at_once), Replica(at_once)]
    async with ingress(tmp_path, replicas, shadows=True) as client:
        assert min(await calls(client, replicas)) > 0
