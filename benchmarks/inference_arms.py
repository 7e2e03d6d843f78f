"""How the same tensors are handed to a model: by a direct call, by REST (raw and JSON), by gRPC; all open loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import httpx
import numpy as np
import orjson
import uvloop
from tritonclient.grpc import service_pb2, service_pb2_grpc

from benchmarks.load import Load, Outcomes, post, start
from pool.engines.onnx import OnnxEngine
from serving.inference_protocol.tensors import datatype_of, raw

CONNECTIONS = 64
WARM_CALLS = 50
TIMEOUT_S = 10.0
OK = 200
pb: Any = service_pb2
Fire = Callable[["Asked", np.ndarray], Outcomes]
_TYPES = {"tensor(float)": np.float32, "tensor(int64)": np.int64, "tensor(int32)": np.int32}


@dataclass(frozen=True)
class Asked:
    """A model, where it is served, and the tensors of every call."""

    http_port: int
    grpc_port: int
    model: str
    version: str
    inputs: Mapping[str, np.ndarray]

    @property
    def path(self) -> str:
        return f"/v2/models/{self.model}/versions/{self.version}"

    def await_ready(self, within_s: float) -> None:
        """Raises TimeoutError when the model does not come to be served."""
        until_s = time.monotonic() + within_s
        while time.monotonic() < until_s:
            try:
                url = f"http://127.0.0.1:{self.http_port}{self.path}/ready"
                if httpx.get(url, timeout=5, trust_env=False).status_code == OK:
                    return
            except httpx.HTTPError:
                pass
            time.sleep(0.2)
        raise TimeoutError(f"{self.model} was not served within {within_s:g} s")


def inputs_of(file: Path, free: int) -> dict[str, np.ndarray]:
    """Tensors that a model takes, of one row; every other free axis is ``free`` long. Numbers are random."""
    engine, random = OnnxEngine(file), np.random.default_rng(0)
    found = {}
    for name, kind in engine.input_types.items():
        shape = [length if length > 0 else free for length in engine.shapes[name]]
        found[name] = random.normal(0, 0.1, [1, *shape[1:]]).astype(_TYPES[kind])
    return found


def direct(file: Path, inputs: Mapping[str, np.ndarray], times_s: np.ndarray) -> Outcomes:
    """Calls in this process, one after the other, each as soon as its time has come."""
    engine = OnnxEngine(file)
    for _ in range(WARM_CALLS):
        engine.run(inputs)
    outcomes = Outcomes.empty(times_s, time.monotonic(), keep_bodies=False)
    for place, due_s in enumerate(outcomes.started_s + times_s):
        time.sleep(max(0.0, due_s - time.monotonic()))
        engine.run(inputs)
        _record(outcomes, place, due_s)
    return outcomes


def direct_rate(file: Path, inputs: Mapping[str, np.ndarray], seconds: float) -> float:
    """Calls a second, one after the other without a pause."""
    engine, calls = OnnxEngine(file), 0
    for _ in range(WARM_CALLS):
        engine.run(inputs)
    begun_s = time.monotonic()
    while time.monotonic() - begun_s < seconds:
        engine.run(inputs)
        calls += 1
    return calls / (time.monotonic() - begun_s)


def by_rest(asked: Asked, times_s: np.ndarray) -> Outcomes:
    """Raw tensors behind the JSON, both ways."""
    tensors, parts = [], []
    for name, array in asked.inputs.items():
        parts.append(raw(array))
        size = {"binary_data_size": len(parts[-1])}
        tensors.append({"name": name, "datatype": datatype_of(array), "shape": array.shape, "parameters": size})
    head = orjson.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}})
    headers = {"Content-Type": "application/octet-stream", "Inference-Header-Content-Length": str(len(head))}
    return _fired(asked, post(f"{asked.path}/infer", b"".join((head, *parts)), headers), times_s)


def by_json(asked: Asked, times_s: np.ndarray) -> Outcomes:
    """Every number as text, both ways."""
    tensors = [
        {"name": name, "datatype": datatype_of(array), "shape": array.shape, "data": array.ravel()}
        for name, array in asked.inputs.items()
    ]
    body = orjson.dumps({"inputs": tensors}, option=orjson.OPT_SERIALIZE_NUMPY)
    return _fired(asked, post(f"{asked.path}/infer", body), times_s)


def by_grpc(asked: Asked, times_s: np.ndarray) -> Outcomes:
    """One connection, as a client has it."""
    request = pb.ModelInferRequest(model_name=asked.model, model_version=asked.version)
    for name, array in asked.inputs.items():
        request.inputs.add(name=name, datatype=datatype_of(array), shape=array.shape)
        request.raw_input_contents.append(raw(array))
    return uvloop.run(_asked(f"127.0.0.1:{asked.grpc_port}", request, times_s))


ARMS: Mapping[str, Fire] = {"rest, binary": by_rest, "rest, json": by_json, "grpc": by_grpc}


def _fired(asked: Asked, request: bytes, times_s: np.ndarray) -> Outcomes:
    with start(Load(asked.http_port, [request], times_s, connections=CONNECTIONS, timeout_s=TIMEOUT_S)) as running:
        return running.outcomes()


async def _asked(address: str, request: Any, times_s: np.ndarray) -> Outcomes:
    async with grpc.aio.insecure_channel(address) as channel:
        stub = service_pb2_grpc.GRPCInferenceServiceStub(channel)
        await stub.ServerLive(pb.ServerLiveRequest(), timeout=TIMEOUT_S)
        outcomes = Outcomes.empty(times_s, time.monotonic(), keep_bodies=False)

        async def call(place: int, due_s: float) -> None:
            try:
                await stub.ModelInfer(request, timeout=TIMEOUT_S)
            except grpc.aio.AioRpcError:
                return
            _record(outcomes, place, due_s)

        calls = []
        for place, due_s in enumerate(outcomes.started_s + times_s):
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))
            calls.append(asyncio.create_task(call(place, due_s)))
        await asyncio.gather(*calls)
        return outcomes


def _record(outcomes: Outcomes, place: int, due_s: float) -> None:
    outcomes.latency_s[place] = time.monotonic() - due_s
    outcomes.status[place] = OK
