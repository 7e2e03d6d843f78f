"""What the REST side refuses, and how: a status, a message that names the field, and nothing half done."""

from __future__ import annotations

import gzip
import os
import time
import zlib

import httpx
import numpy as np
import orjson
import pytest

from configs.errors import InvalidRequest
from serving.inference_protocol.dataplane import DataPlane
from serving.inference_protocol.models import Model
from serving.inference_protocol.registry import ModelRegistry
from serving.inference_protocol.rest import RestApp
from serving.inference_protocol.sources import FolderSource

MOST_BYTES = 20_000
ROW = np.array([[1.0, 2.0]], np.float32)
LENGTH = "Inference-Header-Content-Length"


def load(config, version, file) -> Model:
    return Model(config, version, file, rows=8, threads=1, max_queued=10, max_elements=1_000)


@pytest.fixture
def registry(repository):
    for path in repository.rglob("*"):
        os.utime(path, (time.time() - 60, time.time() - 60))
    found = ModelRegistry([FolderSource(repository)], load)
    found.poll()
    yield found
    found.close()


@pytest.fixture
async def client(registry):
    app = RestApp(DataPlane(registry), MOST_BYTES)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://models") as found:
        yield found


def body(**more) -> dict:
    return {"inputs": [{"name": "x", "datatype": "FP32", "shape": [1, 2], "data": [1, 2], **more}]}


def binary(sent: bytes = ROW.tobytes(), size: int | None = None, **more) -> tuple[bytes, dict[str, str]]:
    """A body with raw values behind its JSON, and the header that says where they begin."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": size or len(sent)}}
    head = orjson.dumps({"inputs": [{**tensor, **more}], "parameters": {"binary_data_output": True}})
    return head + sent, {LENGTH: str(len(head))}


INFER = "/v2/models/double/infer"


async def infer(client, content, **headers) -> httpx.Response:
    content = content if isinstance(content, bytes) else orjson.dumps(content)
    return await client.post(INFER, content=content, headers=headers)


async def test_raw_values_are_taken_and_given_back_behind_the_json(client):
    content, headers = binary()
    reply = await client.post(INFER, content=content, headers=headers)
    length = int(reply.headers[LENGTH])
    told = orjson.loads(reply.content[:length])["outputs"][0]
    assert told == {"name": "y", "datatype": "FP32", "shape": [1, 2], "parameters": {"binary_data_size": 8}}
    assert np.frombuffer(reply.content[length:], np.float32).tolist() == [2, 4]


async def test_infinity_travels_as_a_word_in_json(client):
    reply = await infer(client, body(data=[3e38, 1]))
    assert b"Infinity" in reply.content


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (b"", "inputs"),
        (b"{", "JSON"),
        (b"[]", "object"),
        (b"\xff\xfe", "JSON"),
        ({"inputs": {}}, "inputs"),
        ({"inputs": [3]}, "inputs.0"),
        (body(name=1), "inputs.0.name"),
        (body(shape=["1", 2]), "inputs.0.shape"),
        (body(shape=[1, 2.5]), "inputs.0.shape"),
        (body(shape=[2**63, 2]), "inputs.0.shape"),
        (body(shape=[-1, 2]), "negative"),
        (body(shape=[1]), "unexpected shape for input 'x'"),
        (body(shape=[0, 2], data=[]), "batch-size"),
        (body(data=None), "'data' of input 'x'"),
        (body(data={"a": 1}), "'data' of input 'x'"),
        (body(data=[1]), "1 values"),
        (body(data=["a", "b"]), "type FP32"),
        (body(datatype="FP99"), "FP99"),
        (body(parameters={"shared_memory_region": "r", "shared_memory_byte_size": 8}), "shared memory"),
        (body(parameters={"binary_data_size": 8}), "binary data"),
        (body(parameters={"binary_data_size": -8}), "binary_data_size"),
        (body() | {"parameters": {"priority": "high"}}, "priority"),
        (body() | {"parameters": {"timeout": -1}}, "timeout"),
        (body() | {"outputs": [{"name": "nix"}]}, "unexpected inference output 'nix'"),
        (body() | {"id": 7}, "id"),
    ],
)
async def test_a_wrong_body_is_refused_by_its_field(client, wrong, said):
    reply = await infer(client, wrong)
    assert reply.status_code == 400
    assert said in reply.json()["error"]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (binary(size=99), "99 bytes"),
        (binary(sent=ROW.tobytes() + b"more", size=8), "additional"),
        (binary(sent=b"\0" * 4), "byte size 4"),
        ((b"{}", {LENGTH: "3"}), LENGTH),
        ((b"{}", {LENGTH: "-1"}), LENGTH),
        ((b"{}", {LENGTH: "two"}), LENGTH),
    ],
)
async def test_parts_that_do_not_fit_together_are_refused(client, content, said):
    reply = await client.post(INFER, content=content[0], headers=content[1])
    assert (reply.status_code, said in reply.json()["error"]) == (400, True)


async def test_a_body_above_the_limit_is_refused_however_it_is_packed(client):
    large = orjson.dumps(body(data=[0] * MOST_BYTES))
    assert (await infer(client, large)).status_code == 413
    for name, packed in (("gzip", gzip.compress(large)), ("deflate", zlib.compress(large))):
        reply = await infer(client, packed, **{"Content-Encoding": name})
        assert (reply.status_code, "larger than" in reply.json()["error"]) == (400, True)


@pytest.mark.parametrize("encoding", ["gzip", "deflate", "br"])
async def test_what_is_not_compressed_as_it_says_is_refused(client, encoding):
    assert (await infer(client, body(), **{"Content-Encoding": encoding})).status_code == 400
    cut = {"gzip": gzip.compress(orjson.dumps(body())), "deflate": zlib.compress(orjson.dumps(body()))}
    if encoding in cut:
        assert (await infer(client, cut[encoding][:-4], **{"Content-Encoding": encoding})).status_code == 400


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/v2/nix", 404),
        ("GET", "/v2/models/double/nix", 404),
        ("GET", "/v2/models/..%2f..%2fetc/config", 404),
        ("GET", "/v2/models/%2e%2e/config", 404),
        ("POST", "/v2/repository/models/%2e%2e/load", 404),
        ("POST", "/v2/repository/models/nix/load", 500),
        ("POST", "/v2/repository/models/nix/unload", 500),
        ("GET", "/v2/models/double/infer", 405),
        ("POST", "/v2/models/double/config", 405),
        ("GET", "/v2/repository/index", 405),
        ("DELETE", "/v2", 405),
        ("GET", "/v2/models/double/versions/x", 404),
    ],
)
async def test_what_there_is_not_is_told(client, method, path, status):
    reply = await client.request(method, path)
    assert reply.status_code == status
    assert reply.json()["error"]


async def test_models_come_from_the_folder_and_never_over_the_network(client):
    upload = {"parameters": {"config": "{}", "file:1/model.onnx": "AAAA"}}
    reply = await client.post("/v2/repository/models/double/load", json=upload)
    assert (reply.status_code, "repository only" in reply.json()["error"]) == (501, True)
    assert (await client.get("/v2/models/double/ready")).status_code == 200


async def test_who_may_not_change_models_changes_none(registry):
    def refuse(headers: dict[bytes, bytes]) -> None:
        raise InvalidRequest(f"no token from {headers[b'host'].decode()}")

    app = RestApp(DataPlane(registry), MOST_BYTES, refuse)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://models") as client:
        for change in ("load", "unload"):
            assert (await client.post(f"/v2/repository/models/double/{change}")).status_code == 400
            from_page = await client.post(f"/v2/repository/models/double/{change}", headers={"Origin": "http://x"})
            assert from_page.status_code == 403
        assert (await client.get("/v2/models/double/ready")).status_code == 200


async def test_metrics_bear_the_names_that_triton_s_dashboards_know(client):
    await infer(client, body())
    lines = (await client.get("/v2/metrics")).text.splitlines()
    assert 'nv_inference_request_success{model="double",version="1"} 1.0' in lines
    assert 'nv_inference_count{model="double",version="1"} 1.0' in lines


async def test_an_urgent_header_and_an_urgent_parameter_are_both_heard(client, registry, monkeypatch):
    levels = []
    batcher = registry.model("double").batcher
    submit = batcher.submit
    monkeypatch.setattr(batcher, "submit", lambda job: levels.append(job.level) or submit(job))
    await infer(client, body())
    for header in ("high", "low", "nonsense"):
        await infer(client, body(), **{"X-Priority": header})
    await infer(client, body() | {"parameters": {"priority": 3}}, **{"X-Priority": "high"})
    await infer(client, body() | {"parameters": {"priority": 99}})
    assert levels == [2, 1, 3, 2, 3, 2]
