"""Models that are copied into a folder are served; what is wrong with one is told, and the others serve on."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest

from configs.errors import NotFound
from serving.inference_protocol.models import InferCall, Model
from serving.inference_protocol.registry import LoadFailed, ModelRegistry
from serving.inference_protocol.sources import FolderSource
from serving.inference_protocol.tensors import InputTensor, raw
from tests.unit.serving.inference_protocol.conftest import write_double


def load(config, version, file) -> Model:
    return Model(config, version, file, rows=8, threads=1, max_queued=10, max_elements=1_000)


@pytest.fixture
def registry(repository, tmp_path):
    """Of a folder whose files were all copied long ago."""
    found = ModelRegistry([FolderSource(repository)], load, tmp_path / "run" / "unloaded.json")
    settle(repository)
    found.poll()
    yield found
    found.close()


def settle(repository: Path) -> None:
    """Let all files look as if they had been there for a while."""
    for path in repository.rglob("*"):
        os.utime(path, (time.time() - 60, time.time() - 60))


def ask(model: Model, array: np.ndarray, **more) -> dict[str, np.ndarray]:
    call = InferCall("", [InputTensor("x", "FP32", array.shape, raw(array))], **more)
    return model.answered(call, model.submit(call).result(10))


def states(registry: ModelRegistry) -> dict[str, str]:
    return {each.name: each.state for each in registry.index()}


def reason(registry: ModelRegistry, name: str) -> str:
    return next(each.reason for each in registry.index() if each.name == name)


def test_a_model_without_configuration_is_completed_from_its_graph_and_batched(registry):
    model = registry.model("double")
    assert model.spec.batching.max_rows == 8 and model.spec.batching.is_dynamic
    assert [(t.name, t.datatype, t.shape) for t in model.spec.inputs] == [("x", "FP32", (-1, 2))]
    given = np.array([[1, 2], [3, 4]], np.float32)
    assert ask(model, given)["y"].tolist() == [[2, 4], [6, 8]]


def test_a_model_whose_first_axis_is_fixed_is_not_batched(registry, repository):
    write_double(repository / "fixed" / "1" / "model.onnx", batched=False)
    registry.load("fixed")
    model = registry.model("fixed")
    assert model.spec.batching.max_rows == 0
    assert ask(model, np.ones((2, 2), np.float32))["y"].tolist() == [[2, 2], [2, 2]]


def test_a_folder_still_being_copied_is_left_alone_until_it_settles(registry, repository):
    write_double(repository / "late" / "1" / "model.onnx")
    registry.poll()
    assert states(registry)["late"] == "UNAVAILABLE"
    settle(repository)
    registry.poll()
    assert states(registry)["late"] == "READY"


def test_a_new_version_takes_over_and_the_old_one_is_gone(registry, repository):
    before = registry.model("double")
    write_double(repository / "double" / "2" / "model.onnx")
    settle(repository)
    registry.poll()
    assert registry.versions("double") == ("2",)
    assert registry.model("double") is not before


@pytest.mark.parametrize(
    ("policy", "served"),
    [
        ("all { }", ("1", "2", "10")),
        ("latest { num_versions: 2 }", ("2", "10")),
        ("specific { versions: [ 1 ] }", ("1",)),
    ],
)
def test_the_version_policy_says_which_versions_serve(registry, repository, policy, served):
    for version in ("2", "10"):
        shutil.copytree(repository / "double" / "1", repository / "double" / version)
    (repository / "double" / "config.pbtxt").write_text(f"version_policy {{ {policy} }}")
    registry.load("double")
    assert registry.versions("double") == served
    assert registry.model("double").version == served[-1]
    with pytest.raises(NotFound, match="version 7 is not found"):
        registry.model("double", "7")


def test_a_damaged_file_is_refused_while_what_served_before_serves_on(registry, repository):
    before = registry.model("double")
    file = repository / "double" / "1" / "model.onnx"
    file.write_bytes(file.read_bytes()[:40])
    with pytest.raises(LoadFailed, match="failed to load 'double'"):
        registry.load("double")
    assert registry.model("double") is before
    assert ask(before, np.ones((1, 2), np.float32))["y"].tolist() == [[2, 2]]
    assert str(repository) not in reason(registry, "double")


CONFIGS = {
    "no configuration": ("name: [", "not a model configuration"),
    "another name": ('name: "other"', "not that of its folder"),
    "another type": ('input [ { name: "x" data_type: TYPE_INT64 dims: [ 2 ] } ]', "'x': data_type is INT64"),
    "another shape": ('max_batch_size: 4 input [ { name: "x" data_type: TYPE_FP32 dims: [ 3 ] } ]', "'x': dims"),
    "an input that is not there": ('input [ { name: "z" data_type: TYPE_FP32 dims: [ 2 ] } ]', "input 'z'"),
    "an unknown platform": ('platform: "tensorflow_graphdef"', "platform 'tensorflow_graphdef'"),
    "an ensemble": ("ensemble_scheduling { }", "ensemble_scheduling: not supported"),
    "a path": ('default_model_filename: "../../secret.onnx"', "default_model_filename"),
    "an absolute path": ('default_model_filename: "/etc/passwd"', "default_model_filename"),
    "batching without a batch": ("dynamic_batching { } max_batch_size: 0 input [ ]", "needs a max_batch_size"),
    "a share": ('parameters { key: "share_milli" value { string_value: "-1" } }', "share_milli"),
    "instances": ("instance_group [ { count: 1000 kind: KIND_CPU } ]", "instance_group"),
    "no such version": ("version_policy { specific { versions: [ 4 ] } }", "none of versions"),
}


@pytest.mark.parametrize("wrong", CONFIGS)
def test_a_wrong_configuration_is_refused_by_its_field(registry, repository, wrong):
    text, said = CONFIGS[wrong]
    write_double(repository / "bad" / "1" / "model.onnx", batched="batching" not in wrong)
    (repository / "bad" / "config.pbtxt").write_text(text)
    with pytest.raises(LoadFailed, match=said):
        registry.load("bad")
    assert states(registry) == {"bad": "UNAVAILABLE", "double": "READY"}
    assert said in reason(registry, "bad")


@pytest.mark.parametrize("name", ["../double", "..", "", ".hidden", "a/b", "x" * 200, "a\0b", "double/1", "%2e%2e"])
def test_a_name_is_never_a_path(registry, name):
    with pytest.raises(NotFound):
        registry.model(name)
    with pytest.raises(NotFound):
        registry.load(name)
    with pytest.raises(NotFound):
        registry.unload(name)


def test_what_was_unloaded_by_request_stays_so_for_every_replica(registry, repository, tmp_path):
    registry.unload("double")
    registry.poll()
    with pytest.raises(NotFound, match="no available versions"):
        registry.model("double")
    other = ModelRegistry([FolderSource(repository)], load, tmp_path / "run" / "unloaded.json")
    other.poll()
    assert states(other) == {"double": "UNAVAILABLE"}
    other.load("double")
    registry.poll()
    assert states(registry) == {"double": "READY"}
    other.close()


def test_a_model_that_is_removed_is_let_go_of(registry, repository):
    shutil.rmtree(repository / "double")
    registry.poll()
    assert registry.index() == []


def test_the_first_source_that_has_a_name_serves_it(repository, tmp_path):
    write_double(tmp_path / "first" / "double" / "5" / "model.onnx")
    settle(tmp_path)
    found = ModelRegistry([FolderSource(tmp_path / "first"), FolderSource(repository)], load)
    found.poll()
    assert found.versions("double") == ("5",)
    found.close()


def test_whoever_follows_is_told_the_models_that_serve(repository):
    told: list[set[str]] = []
    registry = ModelRegistry([FolderSource(repository)], load, changed=lambda models: told.append(set(models)))
    settle(repository)
    registry.poll()
    registry.unload("double")
    assert told == [{"double/1"}, set()]
