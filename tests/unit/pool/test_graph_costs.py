"""Costs of graphs whose operations and bytes can be counted by hand, and of one that torch exports."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper, save
from torch import nn

from configs.errors import ArtifactError, InvalidRequest
from pool.engines.export import export_onnx
from pool.graph_costs import graph_costs

FLOAT, INT = TensorProto.FLOAT, TensorProto.INT64


def weight(name: str, *shape: int):
    return numpy_helper.from_array(np.full(shape, 0.5, np.float32), name)


@pytest.fixture
def model(tmp_path):
    """Save a graph of these operators; returns its path."""

    def build(nodes, inputs, outputs, weights=()):
        graph = helper.make_graph(
            [helper.make_node(kind, list(takes), list(gives), **about) for kind, takes, gives, about in nodes],
            "test",
            [helper.make_tensor_value_info(name, kind, shape) for name, kind, shape in inputs],
            [helper.make_tensor_value_info(name, FLOAT, None) for name in outputs],
            list(weights),
        )
        path = tmp_path / "model.onnx"
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(path))
        return path

    return build


def test_a_product_with_weights(model):
    path = model([("MatMul", "xw", "y", {})], [("x", FLOAT, ["batch", 16])], "y", [weight("w", 16, 4)])
    costs = graph_costs(path, 8)
    assert costs.flops == 2 * 8 * 16 * 4
    assert (costs.parameters, costs.weight_bytes) == (64, 256)
    assert costs.activation_bytes == 4 * (8 * 16 + 8 * 4)
    assert (costs.table_bytes, costs.batch_rows, costs.has_attention) == (0, 8, False)


def test_a_layer_with_its_bias_and_activation(model):
    nodes = [("Gemm", "xwb", "h", {"transB": 1}), ("Relu", "h", "y", {})]
    path = model(nodes, [("x", FLOAT, ["n", 16])], "y", [weight("w", 4, 16), weight("b", 4)])
    costs = graph_costs(path, 3)
    assert costs.flops == 2 * 3 * 16 * 4 + 3 * 4 + 3 * 4
    assert costs.parameters == 64 + 4


@pytest.mark.parametrize(("groups", "channels"), [(1, 6), (2, 3)])
def test_a_convolution(model, groups, channels):
    nodes = [("Conv", "xw", "y", {"group": groups, "kernel_shape": [3, 3], "pads": [1, 1, 1, 1]})]
    path = model(nodes, [("x", FLOAT, ["n", 6, 10, 10])], "y", [weight("w", 8, channels, 3, 3)])
    assert graph_costs(path, 2).flops == 2 * (2 * 8 * 10 * 10) * (channels * 3 * 3)


def test_an_einsum(model):
    path = model(
        [("Einsum", ["x", "z"], "y", {"equation": "bcd,bd->bc"})],
        [("x", FLOAT, ["n", 7, 5]), ("z", FLOAT, ["n", 5])],
        "y",
    )
    assert graph_costs(path, 3).flops == 2 * 3 * 7 * 5


def test_a_recurrent_layer(model):
    nodes = [("GRU", ["x", "w", "r"], "y", {"hidden_size": 8})]
    weights = [weight("w", 1, 24, 5), weight("r", 1, 24, 8)]
    path = model(nodes, [("x", FLOAT, ["events", 2, 5])], "y", weights)
    assert graph_costs(path, 1, {"events": 6}).flops == 2 * 6 * 2 * 24 * (5 + 8)


def test_a_looked_up_table_is_not_read_whole(model):
    nodes = [("Gather", ["table", "ids"], ["rows"], {}), ("ReduceSum", ["rows", "axes"], "y", {"keepdims": 0})]
    axes = numpy_helper.from_array(np.array([1], np.int64), "axes")
    path = model(nodes, [("ids", INT, ["n", 5])], "y", [weight("table", 1000, 4), axes])
    costs = graph_costs(path, 2)
    assert costs.table_bytes == costs.weight_bytes == 16_000
    assert costs.flops == 2 * 5 * 4
    rows, ids, result = 4 * 2 * 5 * 4, 8 * 2 * 5, 4 * 2 * 4
    assert costs.activation_bytes == (2 * rows + ids) + (rows + result)


def test_a_table_that_is_also_multiplied_is_read_whole(model):
    nodes = [("Gather", ["w", "ids"], ["rows"], {}), ("MatMul", ["x", "w"], "y", {}), ("Add", ["rows", "x"], "z", {})]
    path = model(nodes, [("ids", INT, ["n"]), ("x", FLOAT, ["n", 4])], "yz", [weight("w", 4, 4)])
    assert graph_costs(path, 2).table_bytes == 0


def attention_nodes():
    return [
        ("Transpose", "k", "t", {"perm": [0, 2, 1]}),
        ("MatMul", "qt", "s", {}),
        ("Softmax", "s", "p", {"axis": -1}),
        ("MatMul", "pv", "y", {}),
    ]


def test_attention_is_recognised_and_counted(model):
    inputs = [(name, FLOAT, ["n", "events", 16]) for name in "qkv"]
    costs = graph_costs(model(attention_nodes(), inputs, "y"), 2, {"events": 10})
    assert costs.has_attention
    assert costs.flops == 2 * (2 * 2 * 10 * 10 * 16) + 5 * 2 * 10 * 10


def test_a_softmax_over_classes_is_no_attention(model):
    nodes = [("MatMul", "xw", "h", {}), ("Softmax", "h", "y", {})]
    path = model(nodes, [("x", FLOAT, ["n", 16])], "y", [weight("w", 16, 4)])
    assert not graph_costs(path, 2).has_attention


def test_a_model_as_torch_exports_it(tmp_path):
    class Tower(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.dense = nn.Embedding(50, 8), nn.Linear(8, 3)

        def forward(self, ids):
            pooled = self.table(ids).sum(1)
            return self.dense(pooled.reshape(ids.shape[0], -1))

    path, tower = tmp_path / "tower.onnx", Tower()
    export_onnx(
        tower, (torch.zeros(2, 4, dtype=torch.int64),), ["ids"], ["y"], {"ids": {0: "batch", 1: "events"}}, path
    )
    costs = graph_costs(path, 16, {"events": 20})
    assert costs.parameters == sum(each.numel() for each in tower.parameters())
    assert costs.flops == 16 * 20 * 8 + 2 * 16 * 8 * 3 + 16 * 3
    assert costs.table_bytes == 50 * 8 * 4


def test_flops_follow_the_batch(model):
    path = model([("MatMul", "xw", "y", {})], [("x", FLOAT, ["batch", 16])], "y", [weight("w", 16, 4)])
    assert graph_costs(path, 64).flops == 64 * graph_costs(path, 1).flops


def test_a_named_axis_wins_over_its_place(model):
    path = model([("MatMul", "xw", "y", {})], [("x", FLOAT, ["rows", 16])], "y", [weight("w", 16, 4)])
    assert graph_costs(path, 2, {"rows": 5}).flops == 2 * 5 * 16 * 4


def test_an_axis_without_a_length_is_refused_by_its_name(model):
    inputs = [(name, FLOAT, ["n", "events", 16]) for name in "qkv"]
    with pytest.raises(InvalidRequest, match="events of q"):
        graph_costs(model(attention_nodes(), inputs, "y"), 2)


@pytest.mark.parametrize(("batch", "axes"), [(0, {}), (1, {"events": 0})])
def test_a_length_below_one_is_refused(model, batch, axes):
    path = model([("MatMul", "xw", "y", {})], [("x", FLOAT, ["batch", 16])], "y", [weight("w", 16, 4)])
    with pytest.raises(InvalidRequest, match="at least 1"):
        graph_costs(path, batch, axes)


def test_what_is_no_model_is_refused(tmp_path):
    path = tmp_path / "model.onnx"
    with pytest.raises(ArtifactError, match=r"model\.onnx"):
        graph_costs(path, 1)
    path.write_bytes(b"hello" * 20)
    with pytest.raises(ArtifactError, match=r"model\.onnx"):
        graph_costs(path, 1)


def test_lengths_that_do_not_go_together_are_refused(model):
    path = model([("MatMul", "xw", "y", {})], [("x", FLOAT, ["n", "d"])], "y", [weight("w", 16, 4)])
    with pytest.raises(ArtifactError, match="at these lengths"):
        graph_costs(path, 1, {"d": 17})
