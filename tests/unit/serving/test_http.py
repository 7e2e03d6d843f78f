from __future__ import annotations

import httpx
import orjson
import pytest

from configs.errors import ArtifactError, InvalidRequest, Overloaded, Unavailable
from configs.settings import ServingSettings
from serving.http import build_http

LIMIT = 2_000


class FakeService:
    """Answers with the request it got, or raises."""

    def __init__(self):
        self.error: Exception | None = None
        self.why_not_ready: str | None = None

    async def recommend(self, request, headers):
        self.headers = headers
        if self.error:
            raise self.error
        return request.model_dump()


@pytest.fixture
def service():
    return FakeService()


@pytest.fixture
async def client(service):
    app = build_http(service, ServingSettings(max_body_bytes=LIMIT))
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
        yield client


async def post(client, body, **headers):
    content = body if isinstance(body, str | bytes) else orjson.dumps(body)
    return await client.post("/v1/recommend", content=content, headers={"content-type": "application/json", **headers})


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"k": 0}, "k"),
        ({"k": 501}, "k"),
        ({"k": "10"}, "k"),
        ({"k": True}, "k"),
        ({"user_id": ""}, "user_id"),
        ({"user_id": "x" * 1_025}, "user_id"),
        ({"user": "u1"}, "user"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"timeout_ms": 10_001}, "timeout_ms"),
        ({"exclude_item_ids": ["a", 3]}, "exclude_item_ids.1"),
        ({"seed_item_ids": ["a"] * 101}, "seed_item_ids"),
        ('{"user_features": {"age": NaN}}', "user_features.age"),
        ('{"timeout_ms": NaN}', "timeout_ms"),
        ("[]", "body"),
        ("3", "body"),
    ],
)
async def test_a_wrong_field_is_refused_by_name(client, body, field):
    reply = await post(client, body)
    assert reply.status_code == 422
    assert reply.json()["error"]["field"] == field
    assert field.split(".")[0] in reply.json()["error"]["message"]


@pytest.mark.parametrize("body", ["", "{", '{"k": 1,}', "\xff", b"\xff\xfe", '{"user_id": "\\ud800"}'])
async def test_a_body_that_is_not_json_is_refused(client, body):
    reply = await post(client, body)
    assert reply.status_code in (400, 422)
    assert reply.json()["error"]["type"] == "InvalidRequest"


async def test_a_body_above_the_limit_is_refused_by_its_header(client):
    reply = await post(client, {"user_id": "x" * LIMIT})
    assert (reply.status_code, reply.json()["error"]["field"]) == (413, "body")


async def test_a_body_above_the_limit_is_refused_while_it_arrives(client):
    async def chunks():
        for _ in range(10):
            yield b" " * 500

    reply = await client.post("/v1/recommend", content=chunks(), headers={"content-type": "application/json"})
    assert (reply.status_code, reply.json()["error"]["field"]) == (413, "body")


@pytest.mark.parametrize(
    ("error", "status", "name"),
    [
        (InvalidRequest("filter: no", "filter"), 422, "InvalidRequest"),
        (Unavailable("not ready"), 503, "Unavailable"),
        (ArtifactError("secret/path/fine.onnx damaged"), 500, "InternalError"),
        (ZeroDivisionError("secret detail"), 500, "InternalError"),
    ],
)
async def test_errors_map_to_their_status(client, service, error, status, name):
    service.error = error
    reply = await post(client, {})
    assert (reply.status_code, reply.json()["error"]["type"]) == (status, name)
    assert "secret" not in reply.text


async def test_a_refusal_for_load_says_when_to_come_back(client, service):
    service.error = Overloaded("full", retry_after_s=3)
    reply = await post(client, {})
    assert (reply.status_code, reply.headers["retry-after"]) == (429, "3")


async def test_ready_follows_the_service(client, service):
    assert (await client.get("/readyz")).status_code == 200
    service.why_not_ready = "no release"
    reply = await client.get("/readyz")
    assert (reply.status_code, reply.json()["reason"]) == (503, "no release")
    assert (await client.get("/healthz")).status_code == 200


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nothing", 404), ("GET", "/v1/recommend", 405)])
async def test_unknown_paths_and_methods_answer_in_the_same_form(client, method, path, status):
    reply = await client.request(method, path)
    assert reply.status_code == status
    assert reply.json()["error"]["message"]


async def test_ids_with_slashes_spaces_unicode_and_a_kilobyte_are_carried(client):
    ids = ["a/b", "two words", "日本語", "e\u0301", "x" * 1_024]
    reply = await post(client, {"seed_item_ids": ids})
    assert reply.json()["seed_item_ids"] == ids


async def test_bounds_stand_in_the_openapi_document(client):
    document = (await client.get("/openapi.json")).json()
    k = document["components"]["schemas"]["RecommendRequest"]["properties"]["k"]["anyOf"][0]
    assert (k["minimum"], k["maximum"]) == (1, 500)
    assert {"200", "400", "413", "422", "503"} <= set(document["paths"]["/v1/recommend"]["post"]["responses"])


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "application/jsonp", ""])
async def test_only_json_is_taken_so_that_no_page_of_another_origin_can_call(client, kind):
    reply = await client.post("/v1/recommend", content=b"{}", headers={"content-type": kind})
    assert reply.status_code == 415
    assert "application/json" in reply.json()["error"]["message"]


@pytest.mark.parametrize(("header", "value"), [("X-Priority", "highest"), ("Idempotency-Key", "x" * 129)])
async def test_a_wrong_header_is_refused_by_name(client, header, value):
    reply = await post(client, {}, **{header: value})
    assert (reply.status_code, reply.json()["error"]["field"]) == (422, header)


async def test_headers_reach_the_service_and_stand_in_the_openapi_document(client, service):
    await post(client, {}, **{"X-Priority": "low", "Idempotency-Key": "k-1"})
    assert (service.headers.priority, service.headers.idempotency_key) == ("low", "k-1")
    document = (await client.get("/openapi.json")).json()
    named = {p["name"].lower() for p in document["paths"]["/v1/recommend"]["post"]["parameters"]}
    assert {"x-priority", "idempotency-key"} <= named
