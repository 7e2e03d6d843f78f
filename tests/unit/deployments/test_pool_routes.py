"""The pool by HTTP: every status, in the form of the other routes; who may change it; what its document says."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import asdict, replace
from functools import cache
from typing import Any

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import Unavailable
from configs.settings import Settings
from deployments.pool_client import NO_CONTROLLER, PoolClient
from deployments.pool_routes import pool_router
from deployments.pool_rules import is_loopback
from serving.http import build_http
from tests.unit.deployments.pools import Current, FakeController, FakeHandle, workload

POOL = "/v1/pool"
LIMIT = 4_000
SPEC = {"name": "nightly", "kind": "finetune", "model": "fine"}
CHANGES = {"preempt": {}, "resume": {}, "cancel": {}, "migrate": {"device": "cpu-0"}}


class FakeService:
    why_not_ready = None


@pytest.fixture
def controller():
    return FakeController()


CURRENT = Current()


@cache
def service(host: str, home: Any) -> Any:
    settings = Settings.model_validate({"home": home, "serving": {"host": host, "max_body_bytes": LIMIT}})
    router = pool_router(settings, PoolClient(lambda: CURRENT, read_timeout_s=5, change_timeout_s=5))
    return build_http(FakeService(), settings.serving, [router])  # type: ignore


@asynccontextmanager
async def asking(
    controller, host: str = "127.0.0.1", home: Any = "var", name: str = "localhost:8000"
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a service that listens on ``host``, which it calls ``name``."""
    CURRENT.target = FakeHandle(controller)
    transport = httpx.ASGITransport(app=service(host, home), raise_app_exceptions=False)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://{name}") as client:
        yield client


@pytest.fixture
async def client(controller):
    async with asking(controller) as client:
        yield client


def error_of(reply) -> dict[str, Any]:
    return reply.json()["error"]


async def test_a_submitted_workload_is_created_listed_and_found(client, controller):
    body = {**SPEC, "min_milli": 300, "tier": ["gpu", "cpu"], "attributes": {"precision": "int8"}}
    made = await client.post(f"{POOL}/workloads", json=body)
    assert (made.status_code, made.json()["phase"]) == (201, "queued")
    assert (controller.specs[0].tier, controller.specs[0].attributes.precision) == (("gpu", "cpu"), "int8")
    listed = (await client.get(f"{POOL}/workloads")).json()
    assert [each["name"] for each in listed["workloads"]] == ["nightly"]
    assert (await client.get(f"{POOL}/workloads/nightly")).json() == made.json()


@pytest.mark.parametrize(
    ("what", "before", "after"),
    [
        ("preempt", "running", "preempted"),
        ("resume", "preempted", "queued"),
        ("cancel", "running", "cancelled"),
        ("migrate", "running", "migrating"),
    ],
)
async def test_a_change_is_the_controllers_and_is_told(client, controller, what, before, after):
    controller.known = {"nightly": workload("nightly", phase=before)}
    body = {"reason": "room"} if what in ("preempt", "cancel") else CHANGES[what]
    reply = await client.post(f"{POOL}/workloads/nightly/{what}", json=body)
    assert (reply.status_code, reply.json()["phase"]) == (200, after)
    assert reply.json()["reason"] == {"resume": "resumed", "migrate": "to cpu-0"}.get(what, "room")


async def test_the_report_is_what_the_controller_says(client, controller):
    assert (await client.get(POOL)).json() == json.loads(json.dumps(asdict(controller.shown)))
    devices = (await client.get(f"{POOL}/devices")).json()["devices"]
    assert [each["label"] for each in devices] == ["gpu (emulated)", "cpu"]


async def test_what_is_no_number_is_null(client, controller):
    controller.shown = replace(controller.shown, age_s=float("nan"))
    reply = await client.get(POOL)
    assert "NaN" not in reply.text
    assert reply.json()["age_s"] is None


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"name": "Nightly"}, "name"),
        ({"name": "a" * 64}, "name"),
        ({"name": None}, "name"),
        ({"kind": "train"}, "kind"),
        ({"min_milli": 0}, "min_milli"),
        ({"min_milli": 1_001}, "min_milli"),
        ({"min_milli": True}, "min_milli"),
        ({"min_milli": "300"}, "min_milli"),
        ({"memory_bytes": -1}, "memory_bytes"),
        ({"slo_ms": 0}, "slo_ms"),
        ({"tier": []}, "tier"),
        ({"tier": ["gpu", "tpu"]}, "tier.1"),
        ({"attributes": {"shards": True}}, "attributes.shards"),
        ({"milli": 300}, "milli"),
    ],
)
async def test_a_wrong_field_is_refused_by_name(client, controller, wrong, field):
    reply = await client.post(f"{POOL}/workloads", json={**SPEC, **wrong})
    assert (reply.status_code, error_of(reply)["field"]) == (422, field)
    assert field.split(".")[0] in error_of(reply)["message"]
    assert not controller.known


@pytest.mark.parametrize("value", ["NaN", "[1, -Infinity]", '{"a": 1e999}', str(2**64), "[" * 300 + "]" * 300])
async def test_options_that_could_not_be_told_again_are_refused(client, controller, value):
    body = json.dumps(SPEC)[:-1] + f', "options": {{"x": {value}}}}}'
    reply = await client.post(f"{POOL}/workloads", content=body, headers={"content-type": "application/json"})
    assert reply.status_code in (400, 422)
    assert not controller.known


async def test_options_are_told_as_they_were_sent(client):
    options = {"epochs": 2**53 + 1, "rate": 0.1, "parts": ["recall", None, {"deep": True}], "é": "日本"}
    await client.post(f"{POOL}/workloads", json={**SPEC, "options": options})
    assert (await client.get(f"{POOL}/workloads/nightly")).json()["spec"]["options"] == options


async def test_fields_that_contradict_each_other_are_named(client):
    reply = await client.post(f"{POOL}/workloads", json={**SPEC, "min_milli": 500, "desired_milli": 100})
    assert reply.status_code == 422
    assert "desired_milli" in error_of(reply)["message"]


@pytest.mark.parametrize("content", ["", "{", '{"slo_ms": NaN', b"\xff"])
async def test_what_is_not_json_is_refused(client, content):
    reply = await client.post(f"{POOL}/workloads", content=content, headers={"content-type": "application/json"})
    assert reply.status_code == 400


async def test_not_a_number_is_refused_by_name(client):
    body = json.dumps({**SPEC, "slo_ms": float("nan")})
    reply = await client.post(f"{POOL}/workloads", content=body, headers={"content-type": "application/json"})
    assert (reply.status_code, error_of(reply)["field"]) == (422, "slo_ms")


@pytest.mark.parametrize("path", ["/workloads", *(f"/workloads/nightly/{what}" for what in CHANGES)])
async def test_a_page_of_another_origin_can_change_nothing(client, path):
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        reply = await client.post(f"{POOL}{path}", content=b"{}", headers={"content-type": kind})
        assert reply.status_code == 415, kind


async def test_a_body_above_the_limit_is_refused(client):
    reply = await client.post(f"{POOL}/workloads", json={**SPEC, "team": "x" * LIMIT})
    assert reply.status_code == 413


@pytest.mark.parametrize("name", ["Nightly", "-x", "nightly%0A", "n" * 64, "%2e", "é"])
@pytest.mark.parametrize("what", ["", *(f"/{what}" for what in CHANGES)])
async def test_a_name_that_none_can_have_is_refused(client, name, what):
    method = "POST" if what else "GET"
    reply = await client.request(method, f"{POOL}/workloads/{name}{what}", json=CHANGES[what[1:]] if what else None)
    assert (reply.status_code, error_of(reply)["field"]) == (422, "name")


@pytest.mark.parametrize("what", ["", *(f"/{what}" for what in CHANGES)])
async def test_an_unknown_workload_is_404_with_the_known_ones(client, controller, what):
    controller.known = {"nightly": workload("nightly")}
    method = "POST" if what else "GET"
    reply = await client.request(method, f"{POOL}/workloads/other{what}", json=CHANGES[what[1:]] if what else None)
    assert (reply.status_code, error_of(reply)["type"]) == (404, "NotFound")
    assert "nightly" in error_of(reply)["message"]


async def test_an_unknown_device_is_404_with_the_known_ones(client, controller):
    controller.known = {"nightly": workload("nightly", phase="running")}
    reply = await client.post(f"{POOL}/workloads/nightly/migrate", json={"device": "gpu-9"})
    assert reply.status_code == 404
    assert "cpu-0" in error_of(reply)["message"]


async def test_a_taken_name_and_a_phase_that_does_not_allow_it_are_409(client, controller):
    controller.known = {"nightly": workload("nightly", phase="succeeded")}
    for path, body in (("/workloads", SPEC), ("/workloads/nightly/preempt", {})):
        reply = await client.post(f"{POOL}{path}", json=body)
        assert (reply.status_code, error_of(reply)["type"]) == (409, "Conflict")


@pytest.mark.parametrize(("what", "body", "field"), [
    ("preempt", {"reason": ""}, "reason"),
    ("cancel", {"reason": "x" * 501}, "reason"),
    ("cancel", {"why": "x"}, "why"),
    ("resume", {"reason": "x"}, "reason"),
    ("migrate", {}, "device"),
    ("migrate", {"device": 3}, "device"),
])  # fmt: skip
async def test_a_wrong_field_of_a_change_is_refused_by_name(client, what, body, field):
    reply = await client.post(f"{POOL}/workloads/nightly/{what}", json=body)
    assert (reply.status_code, error_of(reply)["field"]) == (422, field)


async def test_without_a_controller_every_route_says_what_to_do(client, controller):
    controller.error = Unavailable(NO_CONTROLLER)
    replies = [
        await client.get(f"{POOL}{path}") for path in ("", "/devices", "/metrics", "/workloads", "/workloads/nightly")
    ]
    replies += [await client.post(f"{POOL}/workloads", json=SPEC)]
    replies += [await client.post(f"{POOL}/workloads/nightly/{what}", json=body) for what, body in CHANGES.items()]
    assert {reply.status_code for reply in replies} == {503}
    assert {error_of(reply)["message"] for reply in replies} == {NO_CONTROLLER}


async def test_a_controller_that_does_not_answer_in_time_is_504(client, controller):
    controller.error = TimeoutError()
    assert (await client.get(POOL)).status_code == 504
    reply = await client.post(f"{POOL}/workloads", json=SPEC)
    assert (reply.status_code, error_of(reply)["type"]) == (504, "DeadlineExceeded")


async def test_a_bug_of_the_controller_is_not_told(client, controller):
    controller.error = ZeroDivisionError("secret detail")
    reply = await client.get(POOL)
    assert reply.status_code == 500
    assert "secret" not in reply.text


@pytest.mark.parametrize("method", ["OPTIONS", "PUT", "DELETE", "TRACE"])
async def test_other_methods_are_refused_with_those_that_there_are(client, method):
    allowed = {"/workloads": {"GET", "POST"}, "/workloads/nightly": {"GET"}, "/workloads/nightly/cancel": {"POST"}}
    for path, methods in allowed.items():
        reply = await client.request(method, f"{POOL}{path}")
        assert (reply.status_code, error_of(reply)["type"]) == (405, "MethodNotAllowed")
        assert set(reply.headers["allow"].split(", ")) == methods


# Who may change the pool.


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    (home / "run").mkdir()
    (home / "run" / "token").write_text("5ecret\n")
    return home


OUTSIDE = [
    ("0.0.0.0", "10.1.2.3:8000"),
    ("::", "pool.example"),
    ("10.1.2.3", "localhost"),
    ("127.0.0.1", "pool.example"),
]


@pytest.mark.parametrize(("host", "name"), OUTSIDE)
@pytest.mark.parametrize(
    "header", [None, "Bearer wrong", "Bearer ", "5ecret", "Basic 5ecret", "Bearer 5ecre", "Bearer é"]
)
async def test_from_outside_a_change_needs_the_token(controller, home, host, name, header):
    headers = {"Authorization": header.encode()} if header else {}
    async with asking(controller, host, home, name) as client:
        for path, body in (("", SPEC), ("/nightly/preempt", {})):
            reply = await client.post(f"{POOL}/workloads{path}", json=body, headers=headers)
            assert (reply.status_code, error_of(reply)["type"]) == (401, "Unauthorized")
            assert "run/token" in error_of(reply)["message"]
            assert reply.headers["www-authenticate"] == "Bearer"
            assert "5ecret" not in reply.text and str(home) not in reply.text
    assert not controller.known


@pytest.mark.parametrize(("host", "name"), OUTSIDE)
async def test_with_the_token_it_is_made(controller, home, host, name):
    async with asking(controller, host, home, name) as client:
        reply = await client.post(f"{POOL}/workloads", json=SPEC, headers={"Authorization": "Bearer 5ecret"})
        assert reply.status_code == 201


async def test_looking_needs_no_token(controller, home):
    async with asking(controller, "0.0.0.0", home) as client:
        assert (await client.get(POOL)).status_code == 200


@pytest.mark.parametrize("token", [None, "", " \n"])
async def test_without_a_token_nobody_outside_may_change_anything(controller, tmp_path, token):
    if token is not None:
        (tmp_path / "run").mkdir()
        (tmp_path / "run" / "token").write_text(token)
    async with asking(controller, "0.0.0.0", tmp_path) as client:
        for given in ("Bearer ", "Bearer", f"Bearer {token}"):
            reply = await client.post(f"{POOL}/workloads", json=SPEC, headers={"Authorization": given.strip()})
            assert reply.status_code == 401


@pytest.mark.parametrize("name", ["localhost", "LOCALHOST:8000", "127.0.0.1:8000", "127.8.9.1", "[::1]:8000"])
async def test_on_the_machine_itself_no_token_is_needed(controller, home, name):
    for host in ("127.0.0.1", "::1", "localhost"):
        controller.known.clear()
        async with asking(controller, host, home, name) as client:
            assert (await client.post(f"{POOL}/workloads", json=SPEC)).status_code == 201


@given(st.ip_addresses() | st.ip_addresses(network="127.0.0.0/8"))
def test_an_address_is_this_machine_only_in_the_loopback_networks(address):
    inside = str(address).startswith("127.") if address.version == 4 else int(address) == 1
    assert is_loopback(str(address)) == inside


@pytest.mark.parametrize("host", ["", "localhost.example", "127.0.0.1.example", "2130706433", "0.0.0.0", "127.1"])
def test_what_only_looks_like_this_machine_is_not(host):
    assert not is_loopback(host)


# The document.


async def test_bounds_and_every_status_stand_in_the_openapi_document(controller, home):
    async with asking(controller, home=home) as client:
        document = (await client.get("/openapi.json")).json()
    spec = document["components"]["schemas"]["WorkloadSpec"]["properties"]
    assert (spec["min_milli"]["minimum"], spec["min_milli"]["maximum"]) == (1, 1000)
    assert spec["name"]["pattern"]
    submit = document["paths"]["/v1/pool/workloads"]["post"]
    assert submit["requestBody"]["content"]["application/json"]["schema"]["$ref"].endswith("/WorkloadSpec")
    assert {"201", "400", "401", "409", "413", "415", "422", "503", "504"} <= set(submit["responses"])
    assert "200" not in submit["responses"]
    look = document["paths"]["/v1/pool/workloads/{name}"]["get"]
    assert {"200", "404", "422", "503", "504"} == set(look["responses"])
    assert look["parameters"][0]["schema"]["pattern"] == spec["name"]["pattern"]
    for what in CHANGES:
        change = document["paths"][f"/v1/pool/workloads/{{name}}/{what}"]["post"]
        assert {"200", "401", "404", "409", "422", "503"} <= set(change["responses"])
        assert "requestBody" in change


@pytest.mark.parametrize(("host", "asked_for"), [("127.0.0.1", False), ("0.0.0.0", True)])
async def test_the_document_asks_for_the_token_where_the_service_does(controller, home, host, asked_for):
    async with asking(controller, host, home) as client:
        paths = (await client.get("/openapi.json")).json()["paths"]
    assert ("security" in paths["/v1/pool/workloads"]["post"]) == asked_for
    assert "security" not in paths["/v1/pool"]["get"]
