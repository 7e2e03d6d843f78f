from __future__ import annotations

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from configs.errors import ArtifactError, ConfigError
from pool.engines.onnx import OnnxEngine


@pytest.fixture
def model(tmp_path):
    """y = x + x"""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [None, 2]) for name in "xy")
    graph = helper.make_graph([helper.make_node("Add", ["x", "x"], ["y"])], "double", [x], [y])
    path = tmp_path / "model.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), path)
    return path


def test_outputs_come_by_name_and_inputs_the_model_lacks_are_ignored(model):
    found = OnnxEngine(model).run({"x": np.ones((1, 2), np.float32), "other": np.zeros(3)})
    assert found["y"].tolist() == [[2.0, 2.0]]


def test_a_file_that_is_no_model_is_refused_by_name(tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(b"nothing")
    with pytest.raises(ArtifactError, match="model.onnx"):
        OnnxEngine(path)


def test_a_tier_this_machine_cannot_run_is_refused_rather_than_run_on_the_cpu(model):
    with pytest.raises(ConfigError, match="CANNExecutionProvider"):
        OnnxEngine(model, tier="npu")
