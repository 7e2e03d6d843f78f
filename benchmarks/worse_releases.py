"""Releases made worse on purpose, each in its own way, from one that is good; their checksums fit."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from onnx import TensorProto, helper, numpy_helper

from pool.repository import ReleaseRepository

HIDDEN = "hidden"
SIDE = 256
"""Of the matrices that a slow model multiplies: some milliseconds each on a slow core."""


def republish(repository: ReleaseRepository, version: str, change: Callable[[Path], None] = lambda folder: None) -> str:
    """Publish a copy of a release, changed by ``change(folder)``; returns its version."""
    about = repository.manifest(version).model_dump(exclude={"format", "version", "created_at_s", "files"})
    with repository.draft(about) as draft:
        shutil.copytree(repository.path(version), draft.folder, dirs_exist_ok=True)
        (draft.folder / "manifest.json").unlink()
        change(draft.folder)
    return draft.version


def mislabelled(folder: Path) -> None:
    """Every item goes by the name of another one, as with an id map from another build."""
    encoder, items = folder / "encoder.json", folder / "items.parquet"
    raw, table = orjson.loads(encoder.read_bytes()), pq.read_table(items)
    order = np.random.default_rng(0).permutation(len(raw["item_ids"]))
    raw["item_ids"] = [raw["item_ids"][place] for place in order]
    encoder.write_bytes(orjson.dumps(raw))
    pq.write_table(table.take(order), items)


def returning_nothing(folder: Path) -> None:
    """No item may be shown."""
    file = folder / "items.parquet"
    items = pq.read_table(file)
    if HIDDEN in items.column_names:
        items = items.drop_columns([HIDDEN])
    pq.write_table(items.append_column(HIDDEN, pa.array([True] * len(items))), file)


def raising(folder: Path) -> None:
    """Fine rank fails at every batch: its last step wants a shape that nothing has."""

    def fail(graph: onnx.GraphProto, scores: str, out: str) -> None:
        graph.initializer.append(numpy_helper.from_array(np.array([7, 11, 13], np.int64), "impossible"))
        graph.node.append(helper.make_node("Reshape", [scores, "impossible"], [out]))

    _rewired(folder / "models" / "fine_cross" / "1" / "model.onnx", fail)


def slow(folder: Path, turns: int = 100) -> None:
    """Fine rank multiplies matrices before it answers; the answers stay what they were."""

    def delay(graph: onnx.GraphProto, scores: str, out: str) -> None:
        matrix = np.full((SIDE, SIDE), 0.01, np.float32)
        consts = {"turns": np.array(turns, np.int64), "go_on": np.array(True), "matrix": matrix,
                  "nothing": np.array(0.0, np.float32)}  # fmt: skip
        graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in consts.items())
        nodes = [
            # From the scores, or it would be computed once when the model is loaded.
            helper.make_node("ReduceMax", [scores], ["largest"], keepdims=0),
            helper.make_node("Mul", ["largest", "nothing"], ["zero"]),
            helper.make_node("Add", ["matrix", "zero"], ["first"]),
            helper.make_node("Loop", ["turns", "go_on", "first"], ["last"], body=_turn()),
            helper.make_node("ReduceMax", ["last"], ["peak"], keepdims=0),
            helper.make_node("Mul", ["peak", "nothing"], ["added"]),
            helper.make_node("Add", [scores, "added"], [out]),
        ]
        graph.node.extend(nodes)

    _rewired(folder / "models" / "fine_cross" / "1" / "model.onnx", delay)


def _turn() -> onnx.GraphProto:
    """Body of the loop: the matrix times itself, kept within [-1, 1]."""
    shape = [SIDE, SIDE]
    nodes = [
        helper.make_node("MatMul", ["m", "m"], ["product"]),
        helper.make_node("Tanh", ["product"], ["m_out"]),
        helper.make_node("Identity", ["go"], ["go_out"]),
    ]
    inputs = [
        helper.make_tensor_value_info("turn", TensorProto.INT64, []),
        helper.make_tensor_value_info("go", TensorProto.BOOL, []),
        helper.make_tensor_value_info("m", TensorProto.FLOAT, shape),
    ]
    outputs = [
        helper.make_tensor_value_info("go_out", TensorProto.BOOL, []),
        helper.make_tensor_value_info("m_out", TensorProto.FLOAT, shape),
    ]
    return helper.make_graph(nodes, "turn", inputs, outputs)


def _rewired(file: Path, add: Callable[[onnx.GraphProto, str, str], None]) -> None:
    """Let what made the model's first output feed further nodes, which make the output instead."""
    model = onnx.load(str(file))
    out, inner = model.graph.output[0].name, "before_change"
    for node in model.graph.node:
        for at, name in enumerate(node.output):
            if name == out:
                node.output[at] = inner
    add(model.graph, inner, out)
    onnx.save(model, str(file))
