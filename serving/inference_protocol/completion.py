"""Completing a model's configuration from its graph, and refusing one that contradicts it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tritonclient.grpc import model_config_pb2

from configs.errors import ArtifactError
from serving.inference_protocol.config import BACKENDS, FILES, TYPES, ModelConfig, Platform, TensorSpec

_NAMES = {datatype: name for name, datatype in TYPES.items()}


def complete(
    config: ModelConfig, platform: Platform, inputs: Sequence[TensorSpec], outputs: Sequence[TensorSpec], rows: int
) -> None:
    """Fill in what the configuration leaves out, from what the model declares (nothing, for TorchScript).

    Args:
        inputs, outputs: as the graph has them, whole shapes.
        rows: batched where the configuration has no tensors at all and every first axis is free.
    Raises:
        ArtifactError: the configuration contradicts the graph; names the tensor.
    """
    config.platform, config.backend = platform, next(b for b, p in BACKENDS.items() if p == platform)
    config.default_model_filename = config.default_model_filename or FILES[platform]
    is_bare = not config.input and not config.output and not config.max_batch_size
    if is_bare and rows and inputs and all(t.shape[:1] == (-1,) for t in (*inputs, *outputs)):
        config.max_batch_size = rows
        config.dynamic_batching.SetInParent()
    _complete_tensors(config, config.input, inputs, "input")
    _complete_tensors(config, config.output, outputs, "output")
    if not config.input or not config.output:
        raise ArtifactError(
            f"model '{config.name}': must specify input and output tensors in config.pbtxt: a TorchScript file has none"
        )


def _complete_tensors(config: ModelConfig, stated: Any, graph: Sequence[TensorSpec], kind: str) -> None:
    known = {tensor.name: tensor for tensor in graph}
    for each in stated:
        tensor = known.get(each.name)
        if graph and tensor is None:
            raise ArtifactError(
                f"model '{config.name}': unexpected inference {kind} '{each.name}', "
                f"allowed {kind}s are: {', '.join(known)}"
            )
        _complete_tensor(config, each, tensor, kind)
    if kind == "output" and stated:  # a configuration may name some of the outputs
        return
    have = {each.name for each in stated}
    for tensor in graph:
        if tensor.name not in have:
            _complete_tensor(config, stated.add(name=tensor.name), tensor, kind)


def _complete_tensor(config: ModelConfig, each: Any, tensor: TensorSpec | None, kind: str) -> None:
    """One tensor; without a graph there is nothing to complete it from, or to hold it against."""
    where = f"model '{config.name}': {kind} '{each.name}'"
    stated_type = TYPES.get(model_config_pb2.DataType.Name(each.data_type), "")  # type: ignore[attr-defined]
    if tensor is None:
        if not stated_type or not each.dims:
            raise ArtifactError(f"{where}: must specify data_type and dims")
        return
    shape = tensor.shape[1:] if config.max_batch_size else tensor.shape
    if config.max_batch_size and tensor.shape[:1] != (-1,):
        raise ArtifactError(
            f"{where}: the model's first axis is {list(tensor.shape[:1])}, which is no batch axis; "
            "set max_batch_size to 0"
        )
    if each.data_type and stated_type != tensor.datatype:
        raise ArtifactError(f"{where}: data_type is {stated_type}, the model has {tensor.datatype}")
    if each.dims and not _fits(tuple(each.dims), shape) and not each.HasField("reshape"):
        raise ArtifactError(f"{where}: dims are {list(each.dims)}, the model has {list(shape)}")
    if each.HasField("reshape"):
        raise ArtifactError(f"{where}: reshape: not supported; give the shape that the model has")
    each.data_type = model_config_pb2.DataType.Value(_NAMES[tensor.datatype])  # type: ignore[attr-defined]
    if not each.dims:
        each.dims.extend(shape)


def _fits(stated: tuple[int, ...], shape: tuple[int, ...]) -> bool:
    return len(stated) == len(shape) and all(a == b or -1 in (a, b) for a, b in zip(stated, shape, strict=True))
