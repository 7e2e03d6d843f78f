"""TorchScript modules are served from the folder; what they return is held against what they are said to."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from configs.errors import ArtifactError, RecpoolError
from pool.engines.torchscript import TorchScriptEngine
from serving.inference_protocol.models import InferCall, Model
from serving.inference_protocol.registry import ModelRegistry
from serving.inference_protocol.sources import FolderSource
from serving.inference_protocol.tensors import InputTensor, raw

CONFIG = """
platform: "pytorch_libtorch"
max_batch_size: 4
input [ { name: "x" data_type: TYPE_FP32 dims: [ 2 ] } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 2 ] } ]
"""


class Scale(torch.nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * 10


class Both(torch.nn.Module):
    def forward(self, left: torch.Tensor, right: torch.Tensor) -> dict[str, torch.Tensor]:
        return {"sum": left + right, "difference": left - right}


def saved(module: torch.nn.Module, file) -> str:
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.jit.script(module).save(str(file))
    return file


def load(config, version, file) -> Model:
    return Model(config, version, file, rows=8, threads=1, max_queued=10, max_elements=1_000)


def test_a_module_is_served_from_the_folder(tmp_path):
    saved(Scale(), tmp_path / "scale" / "1" / "model.pt")
    (tmp_path / "scale" / "config.pbtxt").write_text(CONFIG)
    registry = ModelRegistry([FolderSource(tmp_path)], load)
    registry.load("scale")
    given = np.ones((1, 2), np.float32)
    answer = registry.model("scale").submit(InferCall("", [InputTensor("x", "FP32", given.shape, raw(given))]))
    assert answer.result(10)["y"].tolist() == [[10, 10]]
    registry.close()


def test_outputs_of_a_mapping_are_taken_by_their_names(tmp_path):
    engine = TorchScriptEngine(saved(Both(), tmp_path / "model.pt"), ["left", "right"], ["difference", "sum"])
    found = engine.run({"right": np.ones(1, np.float32), "left": np.full(1, 3, np.float32)})
    assert {name: array.tolist() for name, array in found.items()} == {"difference": [2], "sum": [4]}


def test_a_module_that_returns_something_else_is_an_error(tmp_path):
    engine = TorchScriptEngine(saved(Scale(), tmp_path / "model.pt"), ["x"], ["y", "z"])
    with pytest.raises(RecpoolError, match="y, z"):
        engine.run({"x": np.ones(1, np.float32)})


def test_a_truncated_file_is_no_module(tmp_path):
    file = saved(Scale(), tmp_path / "model.pt")
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ArtifactError, match="not a TorchScript module"):
        TorchScriptEngine(file, ["x"], ["y"])
