"""A stage on a real Triton server: tensors in shared memory, and nobody left without an answer when it is killed."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from tritonclient import http

from benchmarks.peers.arms import free_port
from benchmarks.triton_server import environment, lay_out, triton_server
from configs.triton_settings import TritonSettings
from pool.engines.onnx import OnnxEngine
from pool.engines.triton import TritonEngine, TritonServer
from tests.integration.inference_models import write_models

PATIENCE_S = 30.0
CALLERS = 4


class Counted:
    """The local engine, and how often it was asked."""

    def __init__(self, file: Path):
        self._engine = OnnxEngine(file)
        self.input_types, self.calls = self._engine.input_types, 0

    def run(self, inputs):
        self.calls += 1
        return self._engine.run(inputs)


@pytest.fixture(scope="module")
def python() -> Path:
    return environment(Path(os.environ.get("RECPOOL_HOME", "var")))


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_models(folder)
    return folder


@pytest.fixture
def repository(models, python, tmp_path) -> Path:
    """Triton's, with the model ``scaled`` alone."""
    lay_out(python, models / "scaled" / "config.pbtxt", tmp_path / "repository")
    return tmp_path / "repository"


@pytest.fixture
def local(models) -> Counted:
    return Counted(models / "scaled" / "3" / "model.onnx")


def engine_at(port: int, local: Counted, version: str = "3", **settings) -> TritonEngine:
    chosen = TritonSettings(url=f"127.0.0.1:{port}", **{"deadline_ms": 1_000, "retry_ms": 50, **settings})
    return TritonServer(chosen).engine("scaled", version, local)


def await_true(truth) -> None:
    until_s = time.monotonic() + PATIENCE_S
    while not truth():
        assert time.monotonic() < until_s
        time.sleep(0.01)


def is_right(engine: TritonEngine, value: float) -> bool:
    given = np.full((2, 2), value, np.float32)
    return bool((engine.run({"INPUT0": given})["OUTPUT0"] == 3 * given).all())


def test_triton_computes_and_when_it_is_killed_under_load_nobody_fails(python, repository, local, tmp_path):
    port = free_port()
    engine = engine_at(port, local)
    wrong: list[float] = []
    ended = threading.Event()

    def call(number: int) -> None:
        value = float(number)
        while not ended.is_set():
            value += CALLERS
            if not is_right(engine, value % 1_000):
                wrong.append(value)

    callers = [threading.Thread(target=call, args=(number,)) for number in range(CALLERS)]
    with triton_server(python, repository, tmp_path, port) as triton:
        await_true(lambda: engine.is_up)
        for caller in callers:
            caller.start()
        await_true(lambda: engine.calls.remote > 50)
        asked = local.calls
        triton.kill()
        await_true(lambda: local.calls > asked + 50)
    with triton_server(python, repository, tmp_path, port):  # another one, which knows no region of the first
        remote = engine.calls.remote
        await_true(lambda: engine.calls.remote > remote + 50)
        ended.set()
        for caller in callers:
            caller.join()
    assert not wrong
    assert engine.calls.local.keys() <= {"UNAVAILABLE", "CANCELLED", "down"}


def test_tensors_go_by_grpc_or_through_memory_and_another_version_is_not_taken(python, repository, local, tmp_path):
    with triton_server(python, repository, tmp_path) as triton:
        for shared in (False, True):
            engine = engine_at(triton.grpc_port, local, shared_memory=shared)
            await_true(lambda engine=engine: engine.is_up)
            assert all(is_right(engine, float(value)) for value in range(20))
            assert local.calls == 0
            assert bool(regions(triton)) is shared
        other = engine_at(triton.grpc_port, local, version="2")
        assert not other.is_up and is_right(other, 1.0)  # the server has versions 1 and 3
        assert local.calls == 1


def regions(triton) -> list:
    with http.InferenceServerClient(f"127.0.0.1:{triton.http_port}") as client:
        return client.get_system_shared_memory_status()
