"""Many callers at once against the running service: each gets their own answer, whatever the others do."""

from __future__ import annotations

import asyncio
import json
import socket
from urllib.parse import urlsplit

import httpx

from serving.schemas import MAX_TIMEOUT_MS
from tests.e2e.conftest import ITEMS, USERS

CROWD = 40
PATIENCE_MS = MAX_TIMEOUT_MS
BUSY = 429
"""A slow machine may refuse some of a crowd; it may not answer them wrongly."""


def ids(*numbers: int) -> list[str]:
    return [f"товар {n}/é" for n in numbers]


async def ask_all(service, calls: list[tuple[str, dict, dict]]) -> list[httpx.Response]:
    """Replies to (path, body, headers), all sent at once."""
    limits = httpx.Limits(max_connections=len(calls))
    async with httpx.AsyncClient(base_url=service.address, timeout=30, limits=limits) as client:
        posts = (client.post(path, json=body, headers=headers) for path, body, headers in calls)
        return await asyncio.gather(*posts)


def recommend(user: int, **body) -> tuple[str, dict, dict]:
    return "/v1/recommend", {"user_id": f"пользователь/{user}", "timeout_ms": PATIENCE_MS, **body}, {}


def send_and_leave(service, calls: list[tuple[str, dict, dict]]) -> None:
    """Send each call on a connection of its own and hang up without reading."""
    at = urlsplit(service.address)
    for path, body, headers in calls:
        content = json.dumps(body).encode()
        lines = {"Host": "x", "Content-Type": "application/json", "Content-Length": str(len(content)), **headers}
        head = f"POST {path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        with socket.create_connection((at.hostname, at.port)) as connection:
            connection.sendall(head.encode() + b"\r\n" + content)


async def test_one_bad_request_in_a_crowd_fails_alone(service):
    bad = {3: {"user_features": {"nonsense": 1}}, 17: {"cursor": "nonsense"}, 31: {"k": 0}}
    replies = await ask_all(service, [recommend(n % USERS, **{"k": 5, **bad.get(n, {})}) for n in range(CROWD)])
    assert [replies[n].json()["error"]["field"] for n in bad] == ["user_features.nonsense", "cursor", "k"]
    good = [reply for n, reply in enumerate(replies) if n not in bad]
    assert {reply.status_code for reply in good} <= {200, BUSY}
    assert {len(reply.json()["items"]) for reply in good if reply.status_code == 200} == {5}


async def test_each_of_a_crowd_gets_exactly_their_own_rows(service):
    """Payloads of many ids beside payloads of one: whoever shares a batch, nothing is mixed up."""
    wanted = [ids(*((n + step) % ITEMS for step in range(1 + n % 32))) for n in range(CROWD)]
    calls = [("/v1/rank", {"item_ids": own, "timeout_ms": PATIENCE_MS}, {}) for own in wanted]
    answered = {n: reply for n, reply in enumerate(await ask_all(service, calls)) if reply.status_code != BUSY}
    assert len(answered) > 1
    for n, reply in answered.items():
        assert sorted(item["id"] for item in reply.json()["items"]) == sorted(wanted[n])


async def test_callers_who_leave_cost_those_who_stay_nothing(service):
    for _ in range(3):
        send_and_leave(service, [recommend(n % USERS, k=50) for n in range(CROWD)])
        [reply] = await ask_all(service, [recommend(5, k=5)])
        assert (reply.status_code, len(reply.json()["items"])) == (200, 5)


async def test_a_crowd_with_short_deadlines_is_answered_or_refused_and_the_next_is_served(service):
    """Nobody is left waiting for an answer that comes late: each is answered, with less if need be, or told at once."""
    calls = [recommend(n % USERS, k=5, timeout_ms=30) for n in range(200)]
    replies = await ask_all(service, calls)
    assert {reply.status_code for reply in replies} <= {200, BUSY}
    assert all(reply.headers["retry-after"] for reply in replies if reply.status_code == BUSY)
    assert any(reply.status_code == 200 for reply in replies)
    [reply] = await ask_all(service, [recommend(5, k=5)])
    assert reply.status_code == 200


async def test_priorities_reach_the_service_and_a_wrong_one_is_named(service):
    calls = [("/v1/recommend", {"k": 1}, {"X-Priority": priority}) for priority in ("high", "normal", "low", "most")]
    replies = await ask_all(service, calls)
    assert [reply.status_code for reply in replies] == [200, 200, 200, 422]
    assert replies[-1].json()["error"]["field"] == "X-Priority"
