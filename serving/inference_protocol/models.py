"""One loaded version of a model: it checks requests against its configuration, and has batches of them computed."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from configs.errors import ArtifactError, InvalidRequest
from pool.engines.engine import Engine
from pool.engines.onnx import OnnxEngine
from serving.inference_protocol.batching import Arrays, Batcher, Job
from serving.inference_protocol.completion import complete
from serving.inference_protocol.config import ModelConfig, ModelSpec, TensorSpec, spec_of
from serving.inference_protocol.statistics import ModelStatistics
from serving.inference_protocol.tensors import NUMPY, InputTensor, TensorLimits, decoded

BATCH_NOTE = (
    "NOTE: Setting a non-zero max_batch_size in the model config requires a batch dimension to be prepended to each "
    "input shape. If you want to specify the full shape including the batch dim in your input dims config, try setting "
    "max_batch_size to zero. See the model configuration docs for more info on max_batch_size."
)
_ONNX_TYPES = {
    "bool": "BOOL",
    "float16": "FP16",
    "float": "FP32",
    "double": "FP64",
    "string": "BYTES",
    **{f"{sign}int{bits}": f"{sign.upper()}INT{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}


LOWEST = -1
"""The priority behind all others, whatever levels a model has."""


@dataclass(frozen=True)
class RequestedOutput:
    """An output that a request asks for; ``classes`` above 0: as its highest values, with their places."""

    name: str
    classes: int = 0


@dataclass(frozen=True)
class InferCall:
    """A request, whichever way it came.

    Attributes:
        id: the caller's own; comes back with the answer.
        outputs: empty: all of them.
        priority: 1 is the most urgent, `LOWEST` the least; 0, or a level that the model does not have: its default.
        timeout_s: longest wait for a batch; None: as the model's configuration says.
    """

    id: str
    inputs: Sequence[InputTensor]
    outputs: Sequence[RequestedOutput] = ()
    priority: int = 0
    timeout_s: float | None = None


class Model:
    """A version that is loaded and takes requests.

    Args:
        file: of the model; ``config`` is completed from it.
        rows: batched for a model whose configuration says nothing and whose first axis is free.
    Raises:
        ArtifactError: the file is no model, or the configuration contradicts it.
    """

    def __init__(
        self,
        config: ModelConfig,
        version: str,
        file: Path,
        *,
        rows: int,
        threads: int,
        max_queued: int,
        max_elements: int,
    ):
        engine, inputs, outputs = _loaded(config, file, threads)
        complete(config, config.platform, inputs, outputs, rows)
        self.config, self.version = config, version
        self.spec: ModelSpec = spec_of(config)
        self.statistics = ModelStatistics()
        self._limits = TensorLimits(max_elements)
        self._inputs = {tensor.name: tensor for tensor in self.spec.inputs}
        self._outputs = {tensor.name: tensor for tensor in self.spec.outputs}
        self.batcher = Batcher(
            self.name, engine.run, self.spec.batching, self.spec.instances, max_queued, self.statistics
        )

    @property
    def name(self) -> str:
        return self.spec.name

    def close(self) -> None:
        """Answer what waits, and let go of the model; blocks until then."""
        self.batcher.close()

    def submit(self, call: InferCall) -> Future[Arrays]:
        """The outputs by name, once a batch has computed them.

        Raises:
            InvalidRequest: an input or output is wrong; names it as Triton does.
            Overloaded: too many requests wait. Unavailable: the model is being unloaded.
        """
        began_ns = time.monotonic_ns()
        try:
            inputs = self._checked(call)
            for output in call.outputs:
                if output.name not in self._outputs:
                    raise self._wrong(
                        call, f"unexpected inference output '{output.name}' for model '{self.name}'", "outputs"
                    )
            policy = self.spec.batching
            asked = policy.levels if call.priority == LOWEST else call.priority
            level = asked if 1 <= asked <= policy.levels else policy.default_level
            wait_s = call.timeout_s or policy.timeout_s
            deadline_s = None if wait_s is None else time.monotonic() + wait_s
            rows = next(iter(inputs.values())).shape[0] if policy.max_rows else 1
            return self.batcher.submit(Job(inputs, rows, level, deadline_s))
        except Exception:
            self.statistics.failed(began_ns)
            raise

    def answered(self, call: InferCall, outputs: Arrays) -> dict[str, np.ndarray]:
        """The outputs that the request asks for, in its order, as it asks for them."""
        if not call.outputs:
            return {name: outputs[name] for name in self._outputs}
        return {
            asked.name: self._classes(outputs[asked.name], asked.classes) if asked.classes else outputs[asked.name]
            for asked in call.outputs
        }

    def _classes(self, array: np.ndarray, count: int) -> np.ndarray:
        """The highest values of each row as ``value:place``, highest first, as the classification extension has it."""
        rows = array.reshape(len(array), -1) if self.spec.batching.max_rows else array.reshape(1, -1)
        best = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, : min(count, rows.shape[1])]
        found, form = np.empty(best.shape, object), "f" if array.dtype.kind == "f" else "d"
        for row, places in enumerate(best):
            found[row] = [f"{rows[row, place].item():{form}}:{place}".encode() for place in places]
        return found if self.spec.batching.max_rows else found[0]

    def _checked(self, call: InferCall) -> dict[str, np.ndarray]:
        """Arrays by input. All of a batched model have the same number of rows."""
        names = [tensor.name for tensor in call.inputs]
        for name in names:
            if name not in self._inputs:
                raise self._wrong(call, f"unexpected inference input '{name}' for model '{self.name}'", name)
            if names.count(name) > 1:
                raise self._wrong(call, f"input '{name}' already exists in request", name)
        missing = [name for name, tensor in self._inputs.items() if not tensor.is_optional and name not in names]
        if missing:
            raise self._wrong(
                call,
                f"expected {len(self._inputs)} inputs but got {len(names)} inputs for model '{self.name}'. Got "
                f"input(s) [{_quoted(names)}], but missing required input(s) [{_quoted(missing)}]. Please provide all "
                "required input(s).",
                missing[0],
            )
        arrays = {tensor.name: self._array(call, tensor, self._inputs[tensor.name]) for tensor in call.inputs}
        self._check_rows(call, arrays)
        return arrays

    def _array(self, call: InferCall, tensor: InputTensor, spec: TensorSpec) -> np.ndarray:
        if tensor.datatype != spec.datatype and tensor.datatype in NUMPY:
            raise self._wrong(
                call,
                f"inference input '{tensor.name}' data-type is '{tensor.datatype}', but model '{self.name}' expects "
                f"'{spec.datatype}'",
                tensor.name,
            )
        fits = len(tensor.shape) == len(spec.shape)
        if not fits or any(want not in (-1, got) for want, got in zip(spec.shape, tensor.shape, strict=True)):
            note = f". {BATCH_NOTE}" if self.spec.batching.max_rows else ""
            raise self._wrong(
                call,
                f"unexpected shape for input '{tensor.name}' for model '{self.name}'. Expected {_listed(spec.shape)}, "
                f"got {_listed(tensor.shape)}{note}",
                tensor.name,
            )
        return decoded(tensor, self._limits)

    def _check_rows(self, call: InferCall, arrays: Mapping[str, np.ndarray]) -> None:
        most = self.spec.batching.max_rows
        if not most:
            return
        counts = {name: len(array) for name, array in arrays.items()}
        first = next(iter(counts.values()))
        for name, rows in counts.items():
            if rows != first:
                raise self._wrong(
                    call,
                    f"input '{name}' batch size does not match other inputs for '{self.name}': {rows}, {first}",
                    name,
                )
        if not 1 <= first <= most:
            raise self._wrong(
                call,
                f"inference request batch-size must be <= {most} for '{self.name}', got {first}",
                next(iter(counts)),
            )

    def _wrong(self, call: InferCall, message: str, field: str) -> InvalidRequest:
        return InvalidRequest(f"[request id: {call.id or '<id_unknown>'}] {message}", field)


def _loaded(config: ModelConfig, file: Path, threads: int) -> tuple[Engine, Sequence[TensorSpec], Sequence[TensorSpec]]:
    """The engine, and the inputs and outputs that the file declares."""
    if config.platform == "onnxruntime_onnx":
        onnx = OnnxEngine(file, threads)
        inputs, outputs = (_declared(config, onnx, types) for types in (onnx.input_types, onnx.output_types))
        texts = [tensor.name for tensor in inputs if tensor.datatype == "BYTES"]
        return _TextInputs(onnx, texts) if texts else onnx, inputs, outputs
    from pool.engines.torchscript import TorchScriptEngine  # torch takes seconds and hundreds of megabytes to load

    names = [each.name for each in config.input], [each.name for each in config.output]
    return TorchScriptEngine(file, *names), (), ()


class _TextInputs:
    """An engine whose strings are text, as ONNX Runtime's are, where the protocol's are bytes."""

    def __init__(self, engine: Engine, names: Sequence[str]):
        self._engine, self._names = engine, names

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return self._engine.run({**inputs, **{name: self._text(name, inputs[name]) for name in self._names}})

    def _text(self, name: str, array: np.ndarray) -> np.ndarray:
        try:
            values = [value.decode() for value in array.ravel()]
        except UnicodeDecodeError:
            raise InvalidRequest(f"input '{name}': not UTF-8, which strings of this model are", name) from None
        text = np.empty(len(values), object)
        text[:] = values
        return text.reshape(array.shape)


def _declared(config: ModelConfig, engine: OnnxEngine, types: Mapping[str, str]) -> list[TensorSpec]:
    return [TensorSpec(name, _datatype(config, name, kind), engine.shapes[name]) for name, kind in types.items()]


def _datatype(config: ModelConfig, tensor: str, kind: str) -> str:
    """``tensor(float)`` is how ONNX Runtime says FP32."""
    datatype = _ONNX_TYPES.get(kind.removeprefix("tensor(").removesuffix(")"))
    if datatype is None:
        raise ArtifactError(f"model '{config.name}': '{tensor}' is a {kind}, which the protocol has no data type for")
    return datatype


def _listed(shape: Sequence[Any]) -> str:
    return f"[{','.join(map(str, shape))}]"


def _quoted(names: Sequence[str]) -> str:
    return ",".join(f"'{name}'" for name in names)
