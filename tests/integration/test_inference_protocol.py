"""Official clients of the Open Inference Protocol, the same tests against Recpool and against a real Triton."""

from __future__ import annotations

import asyncio
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.grpc.aio
import tritonclient.http
import tritonclient.http.aio
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from benchmarks.triton_server import environment, lay_out, triton_server
from configs.settings import build_settings
from tests.integration.inference_models import MOST_ROWS, TYPES, WIDTH, Target, served, two_ports, write_models

CALLERS = 1_000
LOADED_LAST = ("scaled", "simple")
SAMPLES: dict[str, np.ndarray] = {
    "BOOL": np.array([[True, False, True]]),
    "UINT8": np.array([[0, 7, 255]], np.uint8),
    "INT8": np.array([[-128, 0, 127]], np.int8),
    "INT16": np.array([[-32_768, 5, 32_767]], np.int16),
    "INT32": np.array([[-(2**31), 5, 2**31 - 1]], np.int32),
    "INT64": np.array([[-(2**63), 2**53 + 1, 2**63 - 1]], np.int64),
    "UINT64": np.array([[0, 2**53 + 1, 2**64 - 1]], np.uint64),
    "FP16": np.array([[0.5, -65_504, 6e-8]], np.float16),
    "FP32": np.array([[0.1, -3.4e38, 1e-38]], np.float32),
    "FP64": np.array([[0.1, -1.7e308, 5e-324]], np.float64),
    "BYTES": np.array([[b"", "é".encode(), b"three"]], object),
}


@pytest.fixture(scope="module")
def repository(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


@pytest.fixture(scope="module")
def recpool(repository, tmp_path_factory) -> Iterator[Target]:
    port = two_ports()
    home = tmp_path_factory.mktemp("home")
    shutil.copytree(repository, home / "models")
    inference = {"poll_s": 0.1, "max_queued": 4 * CALLERS}
    with served(build_settings({"home": str(home), "serving": {"port": port}, "inference": inference})):
        yield Target("recpool", f"127.0.0.1:{port}", f"127.0.0.1:{port + 1}")


@pytest.fixture(scope="module")
def triton(repository, tmp_path_factory) -> Iterator[Target]:
    python = environment(Path(os.environ.get("RECPOOL_HOME", "var")))
    folder = tmp_path_factory.mktemp("triton")
    for config in repository.glob("*/config.pbtxt"):
        # A model of the Python backend takes a process, and a second or two.
        if config.parent.name in ("simple", "scaled", "identity_fp16", "identity_bytes", "identity_int64"):
            lay_out(python, config, folder / "models")
    with triton_server(python, folder / "models", folder) as server:
        yield Target("triton", f"127.0.0.1:{server.http_port}", server.grpc_url)


@pytest.fixture(scope="module", params=["recpool", "triton"])
def target(request) -> Target:
    found: Target = request.getfixturevalue(request.param)
    wait_ready(found)
    return found


@pytest.fixture(params=[tritonclient.http, tritonclient.grpc], ids=["http", "grpc"])
def kind(request) -> Any:
    """A module of clients."""
    return request.param


@pytest.fixture
def client(target, kind) -> Iterator[Any]:
    with client_of(target, kind) as found:
        yield found


def client_of(target: Target, kind: Any) -> Any:
    return kind.InferenceServerClient(target.http if kind is tritonclient.http else target.grpc)


def wait_ready(target: Target) -> None:
    until_s = time.monotonic() + 60
    with client_of(target, tritonclient.http) as client:
        while not (
            client.is_server_ready() and all(map(client.is_model_ready, ("identity_int64", "scaled", "simple")))
        ):
            assert time.monotonic() < until_s
            time.sleep(0.05)


def tensor(kind: Any, name: str, array: np.ndarray, **how: Any) -> Any:
    found = kind.InferInput(name, list(array.shape), np_to_triton_dtype(array.dtype))
    found.set_data_from_numpy(array, **how)
    return found


def pair(kind: Any, rows: int = 1) -> list[Any]:
    left = np.arange(rows * WIDTH, dtype=np.int32).reshape(rows, WIDTH)
    return [tensor(kind, "INPUT0", left), tensor(kind, "INPUT1", np.ones_like(left))]


def code(kind: Any, http: str, grpc: str) -> str:
    """How a client of this kind tells a status."""
    return http if kind is tritonclient.http else f"StatusCode.{grpc}"


def as_dict(kind: Any, answer: Any) -> dict[str, Any]:
    from google.protobuf.json_format import MessageToDict

    if kind is tritonclient.http:
        return answer
    return MessageToDict(answer, preserving_proto_field_name=True)


def test_the_server_is_alive_and_says_what_it_is(target, client, kind):
    assert client.is_server_live() and client.is_server_ready()
    told = as_dict(kind, client.get_server_metadata())
    assert told["name"] == target.name
    assert {"binary_tensor_data", "statistics", "model_repository", "model_configuration"} <= set(told["extensions"])


def test_a_model_says_what_it_takes(client, kind):
    told = as_dict(kind, client.get_model_metadata("simple"))
    assert [(t["name"], t["datatype"]) for t in told["inputs"]] == [("INPUT0", "INT32"), ("INPUT1", "INT32")]
    assert [list(map(int, t["shape"])) for t in told["outputs"]] == [[-1, WIDTH], [-1, WIDTH]]
    assert as_dict(kind, client.get_model_metadata("scaled"))["versions"] == ["1", "3"]


def test_a_model_tells_its_configuration(client, kind):
    told = as_dict(kind, client.get_model_config("simple"))
    told = told if kind is tritonclient.http else told["config"]
    assert (told["name"], told["max_batch_size"]) == ("simple", MOST_ROWS)
    assert "dynamic_batching" in told
    assert [list(map(int, each["dims"])) for each in told["input"]] == [[WIDTH], [WIDTH]]


def test_an_answer_is_what_the_model_computes(client, kind):
    answer = client.infer("simple", pair(kind, 3), request_id="seven")
    left = np.arange(3 * WIDTH).reshape(3, WIDTH)
    assert (answer.as_numpy("OUTPUT0") == left + 1).all()
    assert (answer.as_numpy("OUTPUT1") == left - 1).all()
    told = answer.get_response() if kind is tritonclient.http else as_dict(kind, answer.get_response())
    assert (told["id"], told["model_name"], told["model_version"]) == ("seven", "simple", "1")


@pytest.mark.parametrize("datatype", ["FP16", "INT64", "BYTES"])
def test_values_of_any_type_come_back_bit_for_bit(client, kind, datatype):
    sent = SAMPLES[datatype]
    found = client.infer(f"identity_{datatype.lower()}", [tensor(kind, "INPUT0", sent)]).as_numpy("OUTPUT0")
    assert found.dtype == sent.dtype
    assert found.tolist() == sent.tolist()


@pytest.mark.parametrize("datatype", ["INT64", "BYTES"])
def test_values_travel_as_json_too(target, datatype):
    sent = SAMPLES[datatype]
    with client_of(target, tritonclient.http) as client:
        output = tritonclient.http.InferRequestedOutput("OUTPUT0", binary_data=False)
        given = tensor(tritonclient.http, "INPUT0", sent, binary_data=False)
        answer = client.infer(f"identity_{datatype.lower()}", [given], outputs=[output])
    assert "data" in answer.get_response()["outputs"][0]
    values = answer.as_numpy("OUTPUT0").ravel().tolist()
    assert [each.encode() if isinstance(each, str) else each for each in values] == sent.ravel().tolist()


def test_only_what_is_asked_for_is_answered_in_its_order(client, kind):
    outputs = [kind.InferRequestedOutput("OUTPUT1")]
    answer = client.infer("simple", pair(kind), outputs=outputs)
    assert answer.as_numpy("OUTPUT0") is None
    assert answer.as_numpy("OUTPUT1").shape == (1, WIDTH)


def test_classification_names_the_highest_values(client, kind):
    outputs = [kind.InferRequestedOutput("OUTPUT0", class_count=2)]
    found = client.infer("simple", pair(kind), outputs=outputs).as_numpy("OUTPUT0")
    assert [each.decode() for each in found.ravel()] == ["16:15", "15:14"]


@pytest.mark.parametrize(("version", "factor"), [("", 3), ("1", 1), ("3", 3)])
def test_a_version_is_asked_for_or_the_newest_answers(client, kind, version, factor):
    given = np.array([[1.0, 2.0]], np.float32)
    answer = client.infer("scaled", [tensor(kind, "INPUT0", given)], version)
    assert (answer.as_numpy("OUTPUT0") == given * factor).all()


@pytest.mark.parametrize("compression", ["gzip", "deflate"])
def test_bodies_may_be_compressed(target, compression):
    with client_of(target, tritonclient.http) as client:
        answer = client.infer(
            "simple",
            pair(tritonclient.http),
            request_compression_algorithm=compression,
            response_compression_algorithm=compression,
        )
    assert answer.as_numpy("OUTPUT0")[0, 0] == 1


WRONG: dict[str, tuple[Any, str, str, str]] = {
    "unknown model": (lambda k: ("nix", pair(k)), "404", "NOT_FOUND", "Request for unknown model: 'nix' is not found"),
    "unknown version": (
        lambda k: ("simple", pair(k), "9"),
        "404",
        "NOT_FOUND",
        "Request for unknown model: 'simple' version 9 is not found",
    ),
    "missing input": (
        lambda k: ("simple", pair(k)[:1]),
        "400",
        "INVALID_ARGUMENT",
        "expected 2 inputs but got 1 inputs for model 'simple'. Got input(s) ['INPUT0'], but missing required input(s) "
        "['INPUT1']. Please provide all required input(s).",
    ),
    "unknown input": (
        lambda k: ("simple", [pair(k)[0], tensor(k, "INPUT2", np.ones((1, WIDTH), np.int32))]),
        "400",
        "INVALID_ARGUMENT",
        "unexpected inference input 'INPUT2' for model 'simple'",
    ),
    "wrong type": (
        lambda k: ("simple", [pair(k)[0], tensor(k, "INPUT1", np.ones((1, WIDTH), np.float32))]),
        "400",
        "INVALID_ARGUMENT",
        "inference input 'INPUT1' data-type is 'FP32', but model 'simple' expects 'INT32'",
    ),
    "wrong shape": (
        lambda k: ("simple", [pair(k)[0], tensor(k, "INPUT1", np.ones((1, 8), np.int32))]),
        "400",
        "INVALID_ARGUMENT",
        f"unexpected shape for input 'INPUT1' for model 'simple'. Expected [-1,{WIDTH}], got [1,8]",
    ),
    "too many rows": (
        lambda k: ("simple", pair(k, MOST_ROWS + 1)),
        "400",
        "INVALID_ARGUMENT",
        f"inference request batch-size must be <= {MOST_ROWS} for 'simple'",
    ),
    "unknown output": (
        lambda k: ("simple", pair(k), "", [k.InferRequestedOutput("OUTPUT9")]),
        "400",
        "INVALID_ARGUMENT",
        "unexpected inference output 'OUTPUT9' for model 'simple'",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_wrong_is_told_with_its_status_and_its_field(client, kind, wrong):
    make, http, grpc, message = WRONG[wrong]
    with pytest.raises(InferenceServerException) as told:
        client.infer(*make(kind))
    assert told.value.status() == code(kind, http, grpc)
    assert message in told.value.message()


def test_a_model_is_unloaded_loaded_and_listed(client, kind):
    def state(name: str) -> str:
        index = client.get_model_repository_index()
        listed = index if kind is tritonclient.http else as_dict(kind, index)["models"]
        return next(each.get("state", "") for each in listed if each["name"] == name)

    assert state("identity_int64") == "READY"
    client.unload_model("identity_int64")
    until_s = time.monotonic() + 30
    while state("identity_int64") == "READY" or client_ready(client, "identity_int64"):
        assert time.monotonic() < until_s
        time.sleep(0.02)
    with pytest.raises(InferenceServerException, match="unknown model: 'identity_int64'"):
        client.infer("identity_int64", [tensor(kind, "INPUT0", SAMPLES["INT64"])])
    client.load_model("identity_int64")
    assert client_ready(client, "identity_int64")
    assert client.infer("identity_int64", [tensor(kind, "INPUT0", SAMPLES["INT64"])]).as_numpy("OUTPUT0").shape == (
        1,
        3,
    )


def client_ready(client: Any, model: str) -> bool:
    try:
        return client.is_model_ready(model)
    except InferenceServerException:
        return False


def test_what_cannot_be_loaded_is_refused(client, kind):
    with pytest.raises(InferenceServerException, match="failed to load 'nix'") as told:
        client.load_model("nix")
    assert told.value.status() == code(kind, "500", "INTERNAL")


def test_statistics_count_requests_and_rows(client, kind):
    def counts() -> tuple[int, int]:
        told = as_dict(kind, client.get_inference_statistics("simple"))["model_stats"][0]
        success = told["inference_stats"]["success"]
        return int(told.get("inference_count", 0)), int(success.get("count", 0))

    rows, requests = counts()
    for _ in range(3):
        client.infer("simple", pair(kind, 2))
    assert counts() == (rows + 6, requests + 3)


@pytest.mark.parametrize("aio", [tritonclient.http.aio, tritonclient.grpc.aio], ids=["http", "grpc"])
async def test_a_thousand_callers_each_get_their_own_rows(target, aio):
    kind = tritonclient.http if aio is tritonclient.http.aio else tritonclient.grpc
    options: dict[str, Any] = {"conn_limit": 100} if kind is tritonclient.http else {}
    address = target.http if kind is tritonclient.http else target.grpc

    async def ask(client: Any, number: int) -> bool:
        rows = 1 + number % 3
        left = number * 1_000 + np.arange(rows * WIDTH, dtype=np.int32).reshape(rows, WIDTH)
        given = [tensor(kind, "INPUT0", left), tensor(kind, "INPUT1", np.full_like(left, number))]
        answer = await client.infer("simple", given)
        return bool((answer.as_numpy("OUTPUT0") == left + number).all())

    async with aio.InferenceServerClient(address, **options) as client:
        found = await asyncio.gather(*(ask(client, number) for number in range(CALLERS)))
    assert sum(found) == CALLERS


def test_a_stream_answers_in_order_and_goes_on_after_an_error(target):
    answers: list[tuple[Any, Any]] = []
    with client_of(target, tritonclient.grpc) as client:
        client.start_stream(lambda result, error: answers.append((result, error)))
        for model in ("simple", "nix", "simple"):
            client.async_stream_infer(model, pair(tritonclient.grpc))
        until_s = time.monotonic() + 30
        while len(answers) < 3 and time.monotonic() < until_s:
            time.sleep(0.01)
        client.stop_stream()
    assert sorted(error is None for _, error in answers) == [False, True, True]
    assert all(result.as_numpy("OUTPUT0")[0, 0] == 1 for result, error in answers if error is None)


@pytest.mark.parametrize("datatype", sorted(TYPES))
def test_recpool_takes_every_type_both_ways(recpool, datatype):
    wait_ready(recpool)
    sent = SAMPLES[datatype]
    for kind in (tritonclient.http, tritonclient.grpc):
        with client_of(recpool, kind) as client:
            given = [tensor(kind, "INPUT0", sent)]
            found = client.infer(f"identity_{datatype.lower()}", given).as_numpy("OUTPUT0")
        assert found.tolist() == sent.tolist()
