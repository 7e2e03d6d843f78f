"""``config.pbtxt`` beside each model of a release, so that its folder of models serves as a Triton repository.

Shapes are those of the graph, the batch included, hence ``max_batch_size: 0``; Triton's own word for a size that is
open is -1. The format is the text form of Triton's ``ModelConfig`` message.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path

import onnx

CONFIG_FILE = "config.pbtxt"
MODEL_FILE = "model.onnx"
TYPES: dict[int, str] = {
    onnx.TensorProto.FLOAT: "TYPE_FP32",
    onnx.TensorProto.FLOAT16: "TYPE_FP16",
    onnx.TensorProto.DOUBLE: "TYPE_FP64",
    onnx.TensorProto.INT8: "TYPE_INT8",
    onnx.TensorProto.INT16: "TYPE_INT16",
    onnx.TensorProto.INT32: "TYPE_INT32",
    onnx.TensorProto.INT64: "TYPE_INT64",
    onnx.TensorProto.UINT8: "TYPE_UINT8",
    onnx.TensorProto.BOOL: "TYPE_BOOL",
    onnx.TensorProto.STRING: "TYPE_STRING",
}


def write_configs(models: Path) -> None:
    """Write the configuration of every ``<name>/<version>/model.onnx`` below a folder that lacks one."""
    for file in sorted(models.glob(f"*/*/{MODEL_FILE}")):
        config = file.parent.parent / CONFIG_FILE
        if not config.exists():
            config.write_text(config_text(file.parent.parent.name, file), encoding="utf-8")


def config_text(name: str, file: Path) -> str:
    """The configuration of an ONNX model; a file that is none gets one without tensors, for Triton to refuse."""
    lines = [f"name: {json.dumps(name)}", 'platform: "onnxruntime_onnx"', "max_batch_size: 0"]
    try:
        graph = onnx.load(str(file), load_external_data=False).graph
    except Exception:  # protobuf's own classes; whoever runs the model refuses it by its file
        return "\n".join(lines) + "\n"
    constants = {each.name for each in graph.initializer}
    lines += _tensors("input", (each for each in graph.input if each.name not in constants))
    lines += _tensors("output", graph.output)
    return "\n".join(lines) + "\n"


def _tensors(kind: str, values: Iterable[onnx.ValueInfoProto]) -> list[str]:
    lines = []
    for value in values:
        tensor = value.type.tensor_type
        dims = [each.dim_value if each.HasField("dim_value") else -1 for each in tensor.shape.dim]
        data_type = TYPES.get(tensor.elem_type, "TYPE_INVALID")
        lines.append(f"{kind} [ {{ name: {json.dumps(value.name)} data_type: {data_type} dims: {dims} }} ]")
    return lines
