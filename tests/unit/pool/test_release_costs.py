"""Costs of a release's models, counted by hand, and counted beside everything else."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper, save

from pool.policy.latency import GraphCosts
from pool.release_costs import EVENTS, FUNNEL, ReleaseCosts, ReleaseShape, release_costs

FLOAT = TensorProto.FLOAT
COSTS = GraphCosts(flops=1, parameters=2, weight_bytes=3, activation_bytes=4, has_attention=False)
PATIENCE_S = 10.0


def product(folder, part: str, axes: list[object], depth: int, width: int) -> None:
    """Save a model that multiplies its input [*axes, depth] with weights [depth, width]."""
    weight = numpy_helper.from_array(np.ones((depth, width), np.float32), "w")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        part,
        [helper.make_tensor_value_info("x", FLOAT, [*axes, depth])],
        [helper.make_tensor_value_info("y", FLOAT, None)],
        [weight],
    )
    file = folder / "models" / part / "1" / "model.onnx"
    file.parent.mkdir(parents=True)
    save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), str(file))


@pytest.fixture
def version(tmp_path):
    """Folder of a release whose models are products."""
    product(tmp_path, "user_tower", ["batch", "events"], 4, 2)
    product(tmp_path, "coarse_user", ["batch"], 4, 3)
    product(tmp_path, "coarse_cross", ["batch", "candidates"], 3, 1)
    product(tmp_path, "fine_user", ["batch"], 4, 5)
    product(tmp_path, "fine_cross", ["batch", "candidates"], 5, 1)
    return tmp_path


def test_each_model_is_counted_for_one_row_with_the_candidates_it_sees(version):
    costs = release_costs(version, coarse_candidates=500, fine_candidates=100)
    recall, coarse, fine = 2 * EVENTS * 4 * 2, 2 * 4 * 3 + 2 * 500 * 3, 2 * 4 * 5 + 2 * 100 * 5
    assert {model: each.flops for model, each in costs.items()} == {
        "recall": recall,
        "coarse": coarse,
        "fine": fine,
        FUNNEL: recall + coarse + fine,
    }
    assert costs[FUNNEL].parameters == 4 * 2 + 4 * 3 + 3 + 4 * 5 + 5
    assert costs[FUNNEL].batch_rows == 1


def test_a_release_without_a_model_has_no_funnel(tmp_path):
    product(tmp_path, "user_tower", ["batch"], 4, 2)
    assert set(release_costs(tmp_path, 1, 1)) == {"recall"}


class Counting:
    """Counts when it is let."""

    def __init__(self, error: Exception | None = None):
        self.error, self.asked = error, []
        self.go, self.done = threading.Event(), threading.Event()

    def __call__(self, shape, version):
        self.asked.append(version)
        assert self.go.wait(PATIENCE_S)
        self.done.set()
        if self.error:
            raise self.error
        return {FUNNEL: COSTS}


def wait_until(truth) -> None:
    for _ in range(1_000):
        if truth():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not come about")


def test_nobody_waits_for_a_count_and_none_is_done_twice(tmp_path):
    count = Counting()
    costs = ReleaseCosts(ReleaseShape(tmp_path, 1, 1), count)
    assert [costs.costs(FUNNEL, "7") for _ in range(3)] == [None] * 3
    count.go.set()
    wait_until(lambda: costs.costs(FUNNEL, "7") == COSTS)
    assert costs.costs("another", "7") is None
    assert count.asked == ["7"]


def test_what_cannot_be_counted_is_not_tried_again_and_again(tmp_path, caplog):
    count = Counting(OSError("damaged"))
    count.go.set()
    costs = ReleaseCosts(ReleaseShape(tmp_path, 1, 1), count)
    assert costs.costs(FUNNEL, "7") is None
    wait_until(lambda: "damaged" in caplog.text)
    assert costs.costs(FUNNEL, "7") is None
    assert count.asked == ["7"]


def test_without_a_champion_there_is_nothing_to_count(tmp_path):
    count = Counting()
    costs = ReleaseCosts(ReleaseShape(tmp_path, 1, 1), count)
    assert costs.costs(FUNNEL, None) is None
    (tmp_path / "aliases.json").write_text("{")
    assert costs.version(None) is None
    (tmp_path / "aliases.json").write_text('{"champion": "9"}')
    count.go.set()
    assert costs.costs(FUNNEL, None) is None
    wait_until(lambda: costs.costs(FUNNEL, None) == COSTS)
    assert count.asked == ["9"]
