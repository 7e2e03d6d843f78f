"""Small ONNX models in Triton's repository layout, which Recpool and a real Triton both serve."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import onnx
import uvicorn
from onnx import NodeProto, TensorProto, helper

from configs.settings import Settings
from serving.inference_protocol.service import InferenceService

TYPES = {
    "BOOL": TensorProto.BOOL,
    "UINT8": TensorProto.UINT8,
    "INT8": TensorProto.INT8,
    "INT16": TensorProto.INT16,
    "INT32": TensorProto.INT32,
    "INT64": TensorProto.INT64,
    "UINT64": TensorProto.UINT64,
    "FP16": TensorProto.FLOAT16,
    "FP32": TensorProto.FLOAT,
    "FP64": TensorProto.DOUBLE,
    "BYTES": TensorProto.STRING,
}
START_S = 30.0
MOST_ROWS = 8
"""``max_batch_size`` of every model."""
WIDTH = 16
"""Columns of the model ``simple``."""


@dataclass(frozen=True)
class Tensor:
    name: str
    datatype: str
    dims: tuple[int, ...]

    @property
    def onnx(self) -> onnx.ValueInfoProto:
        axes = ["batch", *(None if length < 0 else length for length in self.dims)]
        return helper.make_tensor_value_info(self.name, TYPES[self.datatype], axes)

    @property
    def pbtxt(self) -> str:
        kind = "STRING" if self.datatype == "BYTES" else self.datatype
        return f'{{ name: "{self.name}" data_type: TYPE_{kind} dims: {list(self.dims)} }}'


def write_model(
    repository: Path,
    name: str,
    nodes: Sequence[NodeProto],
    inputs: Sequence[Tensor],
    outputs: Sequence[Tensor],
    version: int = 1,
    more: str = "dynamic_batching { }",
) -> None:
    """A version of a model, and its configuration."""
    graph = helper.make_graph(list(nodes), name, [t.onnx for t in inputs], [t.onnx for t in outputs])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    folder = repository / name
    (folder / str(version)).mkdir(parents=True)
    onnx.save(model, folder / str(version) / "model.onnx")
    tensors = [f"{kind} [ {', '.join(t.pbtxt for t in ts)} ]" for kind, ts in (("input", inputs), ("output", outputs))]
    lines = [f'name: "{name}"', 'platform: "onnxruntime_onnx"', f"max_batch_size: {MOST_ROWS}", *tensors, more]
    (folder / "config.pbtxt").write_text("\n".join(lines) + "\n")


def write_models(repository: Path) -> None:
    """``simple`` (sum and difference), ``identity_<datatype>``, and ``scaled`` in versions 1 and 3."""
    pair = (
        [Tensor(f"INPUT{i}", "INT32", (WIDTH,)) for i in (0, 1)],
        [Tensor(f"OUTPUT{i}", "INT32", (WIDTH,)) for i in (0, 1)],
    )
    nodes = [helper.make_node(op, ["INPUT0", "INPUT1"], [f"OUTPUT{i}"]) for i, op in enumerate(("Add", "Sub"))]
    write_model(repository, "simple", nodes, *pair)
    for datatype in TYPES:
        node = helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])
        tensors = [Tensor("INPUT0", datatype, (-1,))], [Tensor("OUTPUT0", datatype, (-1,))]
        write_model(repository, f"identity_{datatype.lower()}", [node], *tensors)
    for version in (1, 3):
        factor = helper.make_tensor("factor", TensorProto.FLOAT, [], [float(version)])
        nodes = [
            helper.make_node("Constant", [], ["by"], value=factor),
            helper.make_node("Mul", ["INPUT0", "by"], ["OUTPUT0"]),
        ]
        tensors = [Tensor("INPUT0", "FP32", (2,))], [Tensor("OUTPUT0", "FP32", (2,))]
        write_model(repository, "scaled", nodes, *tensors, version, "dynamic_batching { }\nversion_policy { all { } }")


@dataclass(frozen=True)
class Target:
    """A server that speaks the protocol."""

    name: str
    http: str
    grpc: str


@contextlib.contextmanager
def served(settings: Settings) -> Iterator[InferenceService]:
    """Recpool's side in this process, without Ray: REST by uvicorn on the settings' port, gRPC on the next."""
    service, loop = InferenceService(settings), asyncio.new_event_loop()
    config = uvicorn.Config(service.rest, port=settings.serving.port, log_level="warning", lifespan="off")
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]

    async def serve() -> None:
        service.start()
        await service.listen()
        await server.serve()
        await service.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()), daemon=True)
    thread.start()
    until_s = time.monotonic() + START_S
    while not server.started:
        assert thread.is_alive() and time.monotonic() < until_s
        time.sleep(0.01)
    try:
        yield service
    finally:
        server.should_exit = True
        thread.join(30)
        loop.close()


def two_ports() -> int:
    """A free port whose successor is free too."""
    while True:
        with socket.socket() as first, socket.socket() as second:
            first.bind(("127.0.0.1", 0))
            port = first.getsockname()[1]
            with contextlib.suppress(OSError, OverflowError):
                second.bind(("127.0.0.1", port + 1))
                return port
