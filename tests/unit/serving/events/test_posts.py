"""POST /v1/events over HTTP: its limits, its refusals, and what its document says."""

from __future__ import annotations

import httpx
import orjson
import pytest

from configs.settings import ServingSettings
from serving.events.posts import PATH, events_post
from serving.http import build_http

LIMIT = 4_000
CLICK = {"event_id": "e1", "kind": "click", "user_id": "ann", "item_id": "i1"}


class FakeService:
    why_not_ready = None


def client_of(intake) -> httpx.AsyncClient:
    app = build_http(FakeService(), ServingSettings(max_body_bytes=LIMIT), [], {PATH: events_post(intake)})  # type: ignore
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test")


async def post(client, body, **headers):
    content = body if isinstance(body, bytes) else orjson.dumps(body)
    return await client.post(PATH, content=content, headers={"content-type": "application/json", **headers})


async def test_a_batch_is_told_event_by_event(intake):
    async with client_of(intake) as client:
        reply = await post(client, {"events": [CLICK, {**CLICK, "item_id": ""}, CLICK]})
    assert reply.status_code == 200
    told = reply.json()
    assert [each["status"] for each in told["results"]] == ["accepted", "refused", "duplicate"]
    assert (told["accepted"], told["refused"], told["duplicates"], told["degraded"]) == (1, 1, 1, [])


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        (b"{", 400, None),
        (b'{"events": [{"event_id": "\\ud800"}]}', 400, None),
        ([], 422, "body"),
        ({}, 422, "events"),
        ({"events": []}, 422, "events"),
        ({"events": CLICK}, 422, "events"),
        ({"events": [CLICK], "user": 1}, 422, "user"),
        ({"events": [CLICK] * 21}, 422, "events"),
        ({"events": [{**CLICK, "item_id": "x" * LIMIT}]}, 413, "body"),
    ],
)
async def test_a_batch_that_is_none_is_refused_whole(intake, event_log, body, status, field):
    async with client_of(intake) as client:
        reply = await post(client, body)
    assert (reply.status_code, reply.json()["error"]["field"]) == (status, field)
    assert event_log.read() == []


async def test_the_body_must_be_said_to_be_json(intake):
    async with client_of(intake) as client:
        assert (await post(client, {"events": [CLICK]}, **{"content-type": "text/plain"})).status_code == 415


async def test_without_a_log_nothing_is_taken():
    async with client_of(None) as client:
        assert (await post(client, {"events": [CLICK]})).status_code == 503


async def test_while_the_store_is_away_the_reply_says_so(intake, store):
    store.is_away = True
    async with client_of(intake) as client:
        reply = (await post(client, {"events": [CLICK]})).json()
    assert reply["accepted"] == 1
    assert reply["degraded"] == [{"stage": "features", "reason": "store_unavailable"}]


async def test_the_document_describes_events(intake):
    async with client_of(intake) as client:
        document = (await client.get("/openapi.json")).json()
    event = document["components"]["schemas"]["EventsRequest"]["properties"]["events"]["items"]
    assert event["properties"]["kind"]["enum"] == ["impression", "click", "like", "rating"]
    assert "200" in document["paths"][PATH]["post"]["responses"]
