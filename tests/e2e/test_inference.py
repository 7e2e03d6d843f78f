"""Models as a service on a running Recpool: the funnel's own, and one that somebody copies into the home."""

from __future__ import annotations

import time

import httpx
import numpy as np
import onnx
import pytest
import tritonclient.grpc
import tritonclient.http
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

PATIENCE_S = 60.0
FUNNEL = {"user_tower", "item_tower", "coarse_user", "coarse_cross", "fine_user", "fine_cross"}


def until(truth) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not truth():
        assert time.monotonic() < until_s
        time.sleep(0.1)


def ready(client, model: str) -> bool:
    try:
        return client.is_model_ready(model)
    except (InferenceServerException, OSError):
        return False


@pytest.fixture(params=["http", "grpc"])
def client(request, service):
    port = int(service.address.rpartition(":")[2])
    kind = tritonclient.http if request.param == "http" else tritonclient.grpc
    with kind.InferenceServerClient(f"127.0.0.1:{port if request.param == 'http' else port + 1}") as found:
        until(lambda: ready(found, "user_tower"))
        yield found


def test_the_models_of_the_release_are_served_under_its_version(service, client):
    index = client.get_model_repository_index()
    models = {each["name"]: each["version"] for each in (index if isinstance(index, list) else listed(index))}
    assert models.keys() >= FUNNEL
    assert {models[name] for name in FUNNEL} == {service.release}


def listed(index) -> list[dict[str, str]]:
    return [{"name": each.name, "version": each.version} for each in index.models]


def test_a_model_that_is_copied_into_the_home_answers_and_is_gone_with_its_folder(home, client):
    folder = home / "models" / "double"
    (folder / "1").mkdir(parents=True, exist_ok=True)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "double",
        *([helper.make_tensor_value_info(name, TensorProto.FLOAT, ["rows", 2])] for name in ("x", "y")),
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    onnx.save(model, folder / "1" / "model.onnx")
    until(lambda: ready(client, "double"))
    kind = tritonclient.http if isinstance(client, tritonclient.http.InferenceServerClient) else tritonclient.grpc
    tensor = kind.InferInput("x", [1, 2], "FP32")
    tensor.set_data_from_numpy(np.array([[1, 2]], np.float32))
    assert client.infer("double", [tensor]).as_numpy("y").tolist() == [[2, 4]]
    (folder / "1" / "model.onnx").unlink()
    (folder / "1").rmdir()
    folder.rmdir()
    until(lambda: not ready(client, "double"))


def test_a_web_page_cannot_unload_a_model(service, client):
    url = f"{service.address}/v2/repository/models/user_tower/unload"
    assert httpx.post(url, headers={"Origin": "http://elsewhere.example"}, timeout=30).status_code == 403
    assert client.is_model_ready("user_tower")
