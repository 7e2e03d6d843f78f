"""What a model costs, from its ONNX graph alone: operations, parameters and bytes moved.

ONNX Runtime resolves the graph first, with every free axis bound: it folds the arithmetic on shapes that
exporters leave behind and takes the branches that are known. What remains is counted operator by operator.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnxruntime as ort
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, shape_inference

from configs.errors import ArtifactError, InvalidRequest
from pool.policy.latency import GraphCosts

VIEWS = {"Reshape", "Squeeze", "Unsqueeze", "Flatten", "Identity", "Dropout", "Shape", "Constant"}
"""Move nothing: they say only how bytes are read."""
MOVES = {"Gather", "GatherElements", "GatherND", "Slice", "Split"}
"""Read as much of their first input as they write."""
COPIES = VIEWS | MOVES | {"Transpose", "Concat", "Expand", "Cast", "Pad", "Tile", "ConstantOfShape", "Range", "Where"}
"""Compute nothing."""
PER_ELEMENT = {"Softmax": 5, "LogSoftmax": 6, "LayerNormalization": 8, "BatchNormalization": 2}
"""Operations on each element: softmax compares, subtracts, exponentiates, adds and divides; layer norm sums for
the mean, subtracts, squares, sums, takes the root, divides, scales and shifts; batch norm scales and shifts."""
KERNEL_PLACE = {"Conv": 1, "ConvInteger": 1, "QLinearConv": 3}
"""Which input of a convolution is its kernel."""
GATES = {"RNN": 1, "GRU": 3, "LSTM": 4}
ATTENTION = {"Attention", "MultiHeadAttention", "GroupQueryAttention", "PackedAttention"}
THROUGH = VIEWS | {"Transpose", "Cast", "Mul", "Where", "Slice", "Expand"}
"""What may stand between the softmax of an attention and the product with its values."""


def graph_costs(path: Path, batch: int, axes: Mapping[str, int] | None = None) -> GraphCosts:
    """Count a model file for one batch.

    A free axis gets the length that ``axes`` gives its name; failing that, the first axis of an input gets
    ``batch``. A multiply-add counts two operations, an elementwise operator one for each element it
    writes, see also `PER_ELEMENT`; moving data counts none. Bodies of loops are not counted, as nobody
    knows how often they run.

    Args:
        batch: rows, at least 1.
        axes: lengths by the names of free axes, for instance candidates of a ranker.
    Raises:
        InvalidRequest: a length is below 1, or an axis stays free; names the axes.
        ArtifactError: the file is no model, does not work at these lengths, or holds operators of unknown shape.
    """
    lengths = dict(axes or {})
    for name, length in {"batch": batch, **lengths}.items():
        if length < 1:
            raise InvalidRequest(f"{name}: {length} rows; must be at least 1", name)
    try:
        model = onnx.load(str(path), load_external_data=False)
    except Exception as error:  # onnx and protobuf raise errors of their own for each kind of bad file
        raise ArtifactError(f"{path}: not an ONNX model ({error})") from error
    parameters, weight_bytes = _weights(model)
    _bind(model, batch, lengths)
    graph = _resolve(model, path)
    return GraphCosts(
        flops=sum(_flops(node, graph) for node in graph.nodes),
        parameters=parameters,
        weight_bytes=weight_bytes,
        activation_bytes=sum(_moved_bytes(node, graph) for node in graph.nodes),
        has_attention=_has_attention(graph),
        table_bytes=sum(graph.weights[name] for name in _tables(graph)),
        batch_rows=batch,
    )


@dataclass(frozen=True)
class _Graph:
    """A resolved graph: its operators, the shape and bytes of every tensor, and the bytes of the weights."""

    nodes: list[NodeProto]
    shapes: dict[str, tuple[int, ...]]
    bytes: dict[str, int]
    weights: dict[str, int]

    def shape(self, name: str) -> tuple[int, ...]:
        if name not in self.shapes:
            raise ArtifactError(f"tensor {name!r}: its shape cannot be told from the graph, so its cost cannot either")
        return self.shapes[name]

    def elements(self, name: str) -> int:
        return math.prod(self.shape(name))


def _weights(model: ModelProto) -> tuple[int, int]:
    """Numbers and bytes of all weights, whether held as initialisers or as constants of more than one number."""
    held = list(model.graph.initializer)
    for node in model.graph.node:
        if node.op_type == "Constant":
            held += [each.t for each in node.attribute if each.name == "value" and math.prod(each.t.dims) > 1]
    floats = [tensor for tensor in held if _is_number(tensor.data_type)]
    return sum(math.prod(t.dims) for t in floats), sum(math.prod(t.dims) * _width(t.data_type) for t in floats)


def _is_number(kind: int) -> bool:
    """Whether a tensor of this type holds weights: floats, or the small integers of a quantised model."""
    return kind not in (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL, TensorProto.STRING)


def _width(kind: int) -> int:
    return helper.tensor_dtype_to_np_dtype(kind).itemsize


def _bind(model: ModelProto, batch: int, lengths: Mapping[str, int]) -> None:
    """Give every axis of the inputs a length, and forget what the exporter said of the shapes behind them."""
    known, unbound = {each.name for each in model.graph.initializer}, []
    for source in model.graph.input:
        dims = [] if source.name in known else source.type.tensor_type.shape.dim
        for place, dim in enumerate(dims):
            if dim.HasField("dim_value"):
                continue
            if dim.dim_param in lengths or place == 0:
                dim.dim_value = lengths.get(dim.dim_param, batch)  # replaces the name
            else:
                unbound.append(f"{dim.dim_param or place} of {source.name}")
    if unbound:
        raise InvalidRequest(f"axes: give a length to {', '.join(unbound)}", "axes")
    for result in model.graph.output:
        for dim in result.type.tensor_type.shape.dim:
            dim.ClearField("dim_param")
            dim.ClearField("dim_value")
    del model.graph.value_info[:]


def _resolve(model: ModelProto, path: Path) -> _Graph:
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "model.onnx"
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1
        # Basic only: the higher levels put vendor operators in the place of those that are counted here.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(target)
        options.add_session_config_entry("session.optimized_model_external_initializers_file_name", "weights")
        options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(path.parent))
        try:
            ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
            resolved = onnx.load(str(target), load_external_data=False)
            resolved = shape_inference.infer_shapes(resolved, data_prop=True)
        except Exception as error:  # the runtime raises its own pybind classes
            raise ArtifactError(f"{path}: the model does not work at these lengths ({error})") from error
    return _read(resolved)


def _read(model: ModelProto) -> _Graph:
    graph = model.graph
    shapes, sizes = {}, {}
    for value in (*graph.input, *graph.output, *graph.value_info):
        shapes[value.name] = _shape(value)
        kind = value.type.tensor_type.elem_type
        sizes[value.name] = math.prod(shapes[value.name]) * (_width(kind) if kind else 0)
    weights = {}
    for tensor in graph.initializer:
        shapes[tensor.name] = tuple(tensor.dims)
        weights[tensor.name] = sizes[tensor.name] = math.prod(tensor.dims) * _width(tensor.data_type)
    return _Graph(list(graph.node), shapes, sizes, weights)


def _shape(value: ValueInfoProto) -> tuple[int, ...]:
    """A length that depends on the data (of what NonZero finds) counts as 1."""
    return tuple(dim.dim_value if dim.HasField("dim_value") else 1 for dim in value.type.tensor_type.shape.dim)


def _flops(node: NodeProto, graph: _Graph) -> int:
    kind = node.op_type
    if kind in COPIES:
        return 0
    out = graph.elements(node.output[0])
    if kind in ("MatMul", "MatMulInteger", "QLinearMatMul"):
        return 2 * out * graph.shape(node.input[0])[-1]
    if kind == "Gemm":
        depth = graph.shape(node.input[0])[0 if _attribute(node, "transA", 0) else 1]
        return 2 * out * depth + (out if len(node.input) > 2 else 0)
    if kind in KERNEL_PLACE:
        window = math.prod(graph.shape(node.input[KERNEL_PLACE[kind]])[1:])
        return 2 * out * window + (out if kind == "Conv" and len(node.input) > 2 else 0)
    if kind == "ConvTranspose":
        return 2 * graph.elements(node.input[0]) * math.prod(graph.shape(node.input[1])[1:])
    if kind == "Einsum":
        return _einsum_flops(node, graph)
    if kind in GATES:
        return _recurrent_flops(node, graph)
    if kind.startswith("Reduce") or kind in ("CumSum", "TopK", "ArgMax", "ArgMin", "GlobalAveragePool"):
        return graph.elements(node.input[0])
    if kind in ("MaxPool", "AveragePool"):
        return out * math.prod(_attribute(node, "kernel_shape", []))
    return out * PER_ELEMENT.get(kind, 1)


def _einsum_flops(node: NodeProto, graph: _Graph) -> int:
    """Every letter is a loop; a step of the innermost multiplies all operands and adds."""
    operands = _attribute(node, "equation", b"").decode().replace(" ", "").split("->")[0].split(",")
    lengths: dict[str, int] = {}
    for letters, name in zip(operands, node.input, strict=True):
        shape = graph.shape(name)
        named = letters.replace("...", "")
        lengths.update(zip(named, shape[len(shape) - len(named) :], strict=True))
        if "..." in letters:
            lengths["..."] = max(lengths.get("...", 1), math.prod(shape[: len(shape) - len(named)]))
    return len(operands) * math.prod(lengths.values())


def _recurrent_flops(node: NodeProto, graph: _Graph) -> int:
    """Of the products only: events x rows x directions x gates x hidden x (inputs + hidden)."""
    events, rows, inputs = graph.shape(node.input[0])
    directions, _, hidden = graph.shape(node.input[2])
    return 2 * events * rows * directions * GATES[node.op_type] * hidden * (inputs + hidden)


def _moved_bytes(node: NodeProto, graph: _Graph) -> int:
    """Activations that an operator reads and writes."""
    if node.op_type in VIEWS:
        return 0
    written = sum(graph.bytes.get(name, 0) for name in node.output)
    if node.op_type in MOVES:
        return 2 * written + sum(graph.bytes.get(n, 0) for n in node.input[1:] if n not in graph.weights)
    return written + sum(graph.bytes.get(name, 0) for name in node.input if name not in graph.weights)


def _tables(graph: _Graph) -> set[str]:
    """Weights that nothing reads but lookups."""
    looked_up = {node.input[0] for node in graph.nodes if node.op_type.startswith("Gather")}
    read = {n for node in graph.nodes for n in (node.input[1:] if node.op_type.startswith("Gather") else node.input)}
    return (looked_up & graph.weights.keys()) - read


def _has_attention(graph: _Graph) -> bool:
    """Whether a softmax weighs something that was computed, rather than being the model's last word."""
    if any(node.op_type in ATTENTION for node in graph.nodes):
        return True
    readers: dict[str, list[NodeProto]] = {}
    for node in graph.nodes:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    return any(
        node.op_type in ("MatMul", "Einsum", "ReduceSum") and not any(name in graph.weights for name in node.input[:2])
        for softmax in graph.nodes
        if softmax.op_type == "Softmax"
        for node in _after(softmax, readers)
    )


def _after(node: NodeProto, readers: Mapping[str, list[NodeProto]]) -> Iterator[NodeProto]:
    """The first operators behind one that do more than rearrange or mask."""
    for name in node.output:
        for reader in readers.get(name, []):
            if reader.op_type in THROUGH:
                yield from _after(reader, readers)
            else:
                yield reader


def _attribute(node: NodeProto, name: str, default: Any) -> Any:
    return next((helper.get_attribute_value(each) for each in node.attribute if each.name == name), default)
