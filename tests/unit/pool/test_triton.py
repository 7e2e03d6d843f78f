"""A stage whose server is late, wrong or gone gets its answer from the local engine, and goes back when it can."""

from __future__ import annotations

import threading
import time
from typing import Any

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from configs.plan_settings import STAGES
from configs.triton_settings import TritonSettings
from pool.engines.engine import as_it_is
from pool.engines.remote import triton_wrap
from pool.engines.triton import TritonEngine, TritonServer

SOON_S = 10.0


class Local:
    """Answers 1."""

    input_types = {"x": "tensor(float)"}

    def run(self, inputs: Any) -> dict[str, np.ndarray]:
        return {"y": np.ones(1)}


class Answer:
    """2, as a client tells it."""

    def get_response(self) -> Any:
        output = type("Output", (), {"name": "y", "shape": [1]})
        return type("Response", (), {"outputs": [output]})

    def as_numpy(self, name: str) -> np.ndarray:
        return np.full(1, 2.0)


class Server:
    """A client of a server whose state a test sets: the status that calls fail with, or None."""

    def __init__(self) -> None:
        self.status: str | None = None
        self.versions = {"1"}
        self.asked: list[tuple[str, str, list[str], float]] = []
        self.looked = threading.Event()

    def is_model_ready(self, model: str, version: str, client_timeout: float) -> bool:
        self.looked.set()
        self._raise()
        return version in self.versions

    def infer(self, model: str, inputs: Any, version: str, outputs: Any, client_timeout: float) -> Answer:
        self.asked.append((model, version, [each.name() for each in inputs], client_timeout))
        self._raise()
        return Answer()

    def _raise(self) -> None:
        if self.status is not None:
            raise InferenceServerException("a fault", status=f"StatusCode.{self.status}")


@pytest.fixture
def server():
    return Server()


def engine_of(server: Server, version: str = "1", **settings: Any) -> TritonEngine:
    chosen = TritonSettings(url="127.0.0.1:1", shared_memory=False, **{"retry_ms": 1, "faults": 2, **settings})
    owner = TritonServer(chosen, server)  # type: ignore[arg-type]
    return owner.engine("fine_user", version, Local())


def run(engine: TritonEngine) -> float:
    return float(engine.run({"x": np.zeros(1, np.float32), "other": np.zeros(1)})["y"][0])


def await_up(engine: TritonEngine, wanted: bool = True) -> None:
    until_s = time.monotonic() + SOON_S
    while engine.is_up is not wanted:
        assert time.monotonic() < until_s
        time.sleep(0.001)


def test_the_server_computes_once_it_was_seen_to_have_the_version(server):
    engine = engine_of(server, deadline_ms=70)
    await_up(engine)
    assert run(engine) == 2
    (model, version, names, timeout_s) = server.asked[0]
    assert (model, version, names) == ("fine_user", "1", ["x"])
    assert 0 < timeout_s <= 0.07


def test_a_server_with_another_version_is_not_asked(server):
    engine = engine_of(server, version="2")
    assert server.looked.wait(SOON_S)
    assert run(engine) == 1 and not server.asked
    server.versions.add("2")
    await_up(engine)
    assert run(engine) == 2


def test_a_server_that_is_gone_is_asked_once_and_not_again_until_it_is_back(server):
    engine = engine_of(server)
    await_up(engine)
    server.status = "UNAVAILABLE"
    assert [run(engine) for _ in range(5)] == [1] * 5
    assert len(server.asked) == 1
    server.status = None
    await_up(engine)
    assert run(engine) == 2


def test_late_answers_are_computed_here_and_after_some_the_server_is_left_alone(server):
    engine = engine_of(server, retry_ms=60_000)
    await_up(engine)
    server.status = "DEADLINE_EXCEEDED"
    assert [run(engine) for _ in range(4)] == [1] * 4
    assert len(server.asked) == 2
    assert engine.calls.local == {"DEADLINE_EXCEEDED": 2, "down": 2}


def test_one_fault_between_good_answers_changes_nothing(server):
    engine = engine_of(server)
    await_up(engine)
    for status, expected in ((None, 2), ("INTERNAL", 1), (None, 2), ("INTERNAL", 1), (None, 2)):
        server.status = status
        assert run(engine) == expected
    assert engine.is_up


def test_what_the_local_engine_raises_is_raised(server):
    engine = engine_of(server, version="2")
    engine._local = type("Broken", (), {"run": lambda self, inputs: 1 / 0})()
    with pytest.raises(ZeroDivisionError):
        run(engine)


def test_without_a_url_or_for_another_stage_engines_stay_as_they_are():
    assert triton_wrap(TritonSettings(), "fine", "1") is as_it_is
    some = TritonSettings(url="127.0.0.1:1", stages=("fine",))
    assert all(triton_wrap(some, stage, "1") is as_it_is for stage in STAGES if stage != "fine")
