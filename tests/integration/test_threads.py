"""Replicas compute on no more cores than their slices have: real processes, started as the plan starts them."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from ray import cloudpickle, serve

from configs.settings import build_settings
from deployments.plan import Placement, make_plan, replica_options, replica_settings

# Workers cannot import a test module by name.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

BURST_S = 1.0
WORKING = 0.05
"""Share of the burst from which a thread counts as one that computes; those of Ray take far less each."""
BACKGROUND_CORES = 0.3
"""What the threads of Ray may take beside the computation."""


class Busy:
    """Loads the libraries as a replica does and works them hard, on the main thread and on a stage's."""

    def __init__(self, threads: int, folder: str):
        self._threads, self._folder = threads, folder

    def work(self) -> dict[str, float]:
        """Threads that compute beside the one that calls, and the cores they took together."""
        import threading
        import time

        import numpy as np
        import psutil
        import torch

        from serving.stages import stage_threads

        executor = stage_threads(self._threads)
        matrix = np.ones((400, 400), np.float32)
        works = [*self._works(matrix), lambda: matrix @ matrix]
        for work in works:
            work()
            executor.submit(work).result()
        before = {thread.id: thread.user_time for thread in psutil.Process().threads()}
        wall, cpu = time.monotonic(), time.process_time()
        while time.monotonic() - wall < BURST_S:
            for work in works:
                work()
        cores = (time.process_time() - cpu) / (time.monotonic() - wall)
        worked = [
            thread.id
            for thread in psutil.Process().threads()
            if thread.user_time - before.get(thread.id, 0.0) >= WORKING * BURST_S
        ]
        helpers = len(set(worked) - {threading.get_native_id()})
        return {"helpers": helpers, "cores": cores, "interop": torch.get_num_interop_threads()}

    def _works(self, matrix):
        """One call of every library that could spread over the machine."""
        import faiss
        import onnx
        import torch

        from pool.engines.onnx import OnnxEngine

        tensor, index = torch.from_numpy(matrix), faiss.IndexFlatIP(400)
        index.add(matrix)
        shape = ["n", 400]
        value = onnx.helper.make_tensor_value_info
        graph = onnx.helper.make_graph(
            [onnx.helper.make_node("MatMul", ["a", "b"], ["c"])],
            "product",
            [value("a", onnx.TensorProto.FLOAT, shape), value("b", onnx.TensorProto.FLOAT, [400, 400])],
            [value("c", onnx.TensorProto.FLOAT, shape)],
        )
        model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10)
        path = Path(self._folder) / "model.onnx"
        path.write_bytes(model.SerializeToString())
        engine = OnnxEngine(path, self._threads)
        return [
            lambda: tensor @ tensor,
            lambda: index.search(matrix, 10),
            lambda: engine.run({"a": matrix, "b": matrix}),
        ]


def placement(share_milli: int) -> Placement:
    gateway = {"replicas": 1, "share_milli": share_milli}
    return make_plan(build_settings({"plan": {"gateway": gateway}}), {"CPU": 4.0}).gateway


@pytest.fixture
def busy(serve_address, tmp_path):
    """A handle of a replica with a slice of so many thousandths of a core."""
    names = []

    def start(share_milli: int, name: str):
        place = placement(share_milli)
        threads = replica_settings(build_settings({}), place).ranking.threads
        options = {**replica_options(place), "graceful_shutdown_wait_loop_s": 0.1}
        wrap = serve.deployment(name="busy", **options)
        names.append(name)
        return serve.run(wrap(Busy).bind(threads, str(tmp_path)), name=name, route_prefix=f"/{name}")

    yield start
    for name in names:
        serve.delete(name)


async def test_two_replicas_with_a_part_of_a_core_each_run_no_thread_beside_the_one_that_calls(busy):
    handles = [busy(100, name) for name in ("busy-one", "busy-two")]
    asked = [handle.work.remote() for handle in handles]
    for found in [await each for each in asked]:
        assert found["helpers"] == 0
        assert found["interop"] == 1
        assert found["cores"] <= 1 + BACKGROUND_CORES


async def test_a_replica_with_two_cores_runs_two_threads_a_library(busy):
    """And the measure of the test before can fail: there are more threads than with one core."""
    found = await busy(2000, "busy-wide").work.remote()
    assert found["helpers"] > 0
    assert found["cores"] <= 2 + BACKGROUND_CORES
