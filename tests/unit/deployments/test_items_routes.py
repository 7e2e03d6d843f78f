"""POST /v1/items over HTTP: who may change items, and what is refused before anything is."""

from __future__ import annotations

import httpx
import pytest

from configs.settings import Settings, build_settings
from deployments.items_routes import PREFIX, items_router
from serving.http import build_http

CHANGE = {"changes": [{"item_id": "i1", "delete": True}]}


class FakeService:
    why_not_ready = None


class FakeItems:
    def __init__(self):
        self.taken: list = []

    async def take(self, request):
        self.taken.append(request.changes)
        return {"accepted": 1, "refused": 0, "version": 1, "results": []}


@pytest.fixture
def items():
    return FakeItems()


def client_of(settings: Settings, items, base_url: str = "http://localhost") -> httpx.AsyncClient:
    app = build_http(FakeService(), settings.serving, [items_router(settings, items)])  # type: ignore
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url=base_url)


async def test_on_this_machine_changes_are_taken(items):
    async with client_of(Settings(), items) as client:
        reply = await client.post(PREFIX, json=CHANGE)
    assert reply.status_code == 200 and reply.json()["accepted"] == 1 and items.taken == [CHANGE["changes"]]


async def test_where_others_reach_the_service_only_the_token_opens(items, tmp_path):
    settings = build_settings({"home": tmp_path, "serving": {"host": "0.0.0.0"}})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "token").write_text("secret")
    async with client_of(settings, items) as client:
        for headers in ({}, {"Authorization": "Bearer wrong"}):
            assert (await client.post(PREFIX, json=CHANGE, headers=headers)).status_code == 401
        assert not items.taken
        reply = await client.post(PREFIX, json=CHANGE, headers={"Authorization": "Bearer secret"})
    assert reply.status_code == 200


@pytest.mark.parametrize("body", [{}, {"changes": []}, {"changes": [{}] * 1_001}, {"changes": 3}, {"items": []}])
async def test_a_body_that_is_no_list_of_changes_is_refused_by_field(items, body):
    async with client_of(Settings(), items) as client:
        reply = await client.post(PREFIX, json=body)
    assert reply.status_code == 422 and reply.json()["error"]["field"] in ("changes", "items") and not items.taken


async def test_the_document_describes_changes(items):
    async with client_of(Settings(), items) as client:
        document = (await client.get("/openapi.json")).json()
    assert {"200", "400", "401", "413", "415", "422", "503"} <= set(document["paths"][PREFIX]["post"]["responses"])
    change = document["components"]["schemas"]["ChangesRequest"]["properties"]["changes"]["items"]
    assert {"item_id", "fields", "delete"} == set(change["properties"])
