"""Priorities and refusals at the HTTP side, and settings that would make quality flap."""

from __future__ import annotations

import httpx
import pytest

from configs.errors import ConfigError, Overloaded
from configs.settings import ServingSettings, build_settings
from serving.http import build_http
from serving.priority import Priority
from serving.schemas import MAX_TIMEOUT_MS, NO_HEADERS, CallHeaders

ROUTES = ("recommend", "rank", "similar")
BODIES = {"recommend": {}, "rank": {"item_ids": ["a"]}, "similar": {"item_ids": ["a"]}}
NOW_S = 1_700_000_000.0


class FakeService:
    """Answers with the priority it was told, or refuses."""

    why_not_ready = None

    def __init__(self):
        self.refusing = False

    async def recommend(self, request, headers=NO_HEADERS):
        if self.refusing:
            raise Overloaded("too busy", retry_after_s=0.2)
        return {"priority": headers.priority}

    rank = similar = recommend


@pytest.fixture
def service():
    return FakeService()


@pytest.fixture
async def client(service):
    transport = httpx.ASGITransport(app=build_http(service, ServingSettings()))
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def ask(client, route, **headers):
    return await client.post(f"/v1/{route}", json=BODIES[route], headers=headers)


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("priority", ["high", "normal", "low"])
async def test_the_header_states_the_priority(client, route, priority):
    reply = await ask(client, route, **{"X-Priority": priority})
    assert reply.json() == {"priority": priority}


@pytest.mark.parametrize("route", ROUTES)
async def test_a_request_that_states_none_is_normal(client, route):
    assert (await ask(client, route)).json() == {"priority": "normal"}


@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("wrong", ["urgent", "HIGH", "1", "", "high,low"])
async def test_another_priority_is_refused_by_the_name_of_the_header(client, route, wrong):
    reply = await ask(client, route, **{"X-Priority": wrong})
    error = reply.json()["error"]
    assert (reply.status_code, error["field"]) == (422, "X-Priority")
    assert "high" in error["message"] and "low" in error["message"]


@pytest.mark.parametrize("route", ROUTES)
async def test_a_refusal_says_when_to_come_back_in_whole_seconds(client, service, route):
    service.refusing = True
    reply = await ask(client, route)
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "1")
    assert reply.json()["error"]["type"] == "Overloaded"


async def test_priority_and_refusal_stand_in_the_openapi_document(client):
    document = (await client.get("/openapi.json")).json()
    for route in ROUTES:
        post = document["paths"][f"/v1/{route}"]["post"]
        assert "429" in post["responses"]
        [header] = [each for each in post["parameters"] if each["name"].lower() == "x-priority"]
        assert (header["in"], header["required"]) == ("header", False)
    assert document["components"]["schemas"]["Priority"]["enum"] == [priority.value for priority in Priority]


@pytest.mark.parametrize(
    ("stated", "waited_s"),
    [
        (f"t={NOW_S * 1000 - 250:.0f}", 0.25),
        (f"{NOW_S * 1000 - 250:.0f}", 0.25),
        (f"t={NOW_S * 1000:.0f}", 0.0),
        (f"t={NOW_S * 1000 + 5_000:.0f}", 0.0),
        (f"t={NOW_S * 1000 - MAX_TIMEOUT_MS - 1:.0f}", 0.0),
        ("t=-5", 0.0),
        ("t=", 0.0),
        ("soon", 0.0),
        ("t=" + "9" * 400, 0.0),
        ("t=²", 0.0),
        (None, 0.0),
    ],
)
def test_the_wait_in_the_proxy_is_known_when_it_can_be(stated, waited_s):
    headers = CallHeaders.model_validate({"request_start": stated}, by_name=True)
    assert headers.waited_s(NOW_S) == pytest.approx(waited_s, abs=1e-3)


@pytest.mark.parametrize(("restore", "shrink"), [(10, 10), (11, 10)])
def test_thresholds_at_which_quality_would_flap_are_refused(restore, shrink):
    with pytest.raises(ConfigError, match="restore_below_ms"):
        build_settings({"overload": {"restore_below_ms": restore, "shrink_above_ms": shrink}})
