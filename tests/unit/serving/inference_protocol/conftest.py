"""Models of a few operators, written as files."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest
from onnx import TensorProto, helper


def write_double(file: Path, batched: bool = True) -> Path:
    """``y`` is twice ``x``, of rows of two floats; without a batch axis that is free, of two rows."""
    axes = ["rows" if batched else 2, 2]
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "x"], ["y"])],
        "double",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, axes)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, axes)],
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), file)
    return file


@pytest.fixture
def repository(tmp_path) -> Path:
    """A folder with the model ``double`` in version 1, without a configuration."""
    write_double(tmp_path / "models" / "double" / "1" / "model.onnx")
    return tmp_path / "models"
