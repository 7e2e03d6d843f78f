from __future__ import annotations

import json
import threading
from pathlib import Path

import onnx
import pytest
from google.protobuf import text_format
from onnx import TensorProto, helper
from tritonclient.grpc import model_config_pb2

from configs.errors import ArtifactError, Conflict, NotFound
from configs.settings import build_settings
from pool.remote_releases import RemoteReleases
from pool.repository import CHALLENGER, CHAMPION, SHADOW, ReleaseRepository, open_releases

ABOUT = {"dataset": "tiny", "recipe": "test", "items": 1, "users": 1, "objectives": ("like",)}


@pytest.fixture
def repository(tmp_path):
    return ReleaseRepository(tmp_path / "releases")


def publish(repository, text: str = "hello") -> str:
    with repository.draft(dict(ABOUT)) as draft:
        (draft.folder / "models").mkdir()
        (draft.folder / "models" / "a.txt").write_text(text)
    return draft.version


def test_versions_count_up_and_verify(repository):
    assert repository.versions() == []
    assert [publish(repository), publish(repository)] == ["1", "2"]
    assert list(repository.verify("2").files) == ["models/a.txt"]


def test_a_build_that_fails_leaves_nothing(repository):
    with pytest.raises(RuntimeError), repository.draft(dict(ABOUT)) as draft:
        (draft.folder / "half").write_text("x")
        raise RuntimeError
    assert list(repository.folder.iterdir()) == []


def test_builds_that_end_at_once_get_different_versions(repository):
    threads = [threading.Thread(target=publish, args=(repository,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert repository.versions() == [str(n) for n in range(1, 9)]
    assert all(repository.verify(version) for version in repository.versions())


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda file: file.unlink(), "missing"),
        (lambda file: file.write_text("hell"), "bytes"),
        (lambda file: file.write_text("HELLO"), "checksum"),
    ],
)
def test_a_damaged_release_is_refused_with_the_file_and_the_reason(repository, damage, reason):
    publish(repository)
    damage(repository.folder / "1" / "models" / "a.txt")
    with pytest.raises(ArtifactError, match=f"models/a.txt.*{reason}"):
        repository.verify("1")


def test_a_truncated_manifest_is_refused(repository):
    publish(repository)
    (repository.folder / "1" / "manifest.json").write_text('{"format": 1,')
    with pytest.raises(ArtifactError, match=r"manifest\.json"):
        repository.manifest("1")


@pytest.mark.parametrize("name", ["", "0", "../1", "1/../1", "x", "1\n", "99"])
def test_a_name_that_is_no_version_is_not_found(repository, name):
    publish(repository)
    with pytest.raises(NotFound, match="published"):
        repository.path(name)


def test_an_alias_points_only_at_what_exists(repository):
    assert repository.champion() is None
    with pytest.raises(NotFound):
        repository.point(CHAMPION, "1")
    publish(repository)
    repository.point(CHAMPION, "1")
    assert repository.champion() == "1"


def edit_manifest(repository, **fields) -> None:
    file = repository.folder / "1" / "manifest.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **fields}))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"format": 3}, "format is 3, and this version reads 2.*update"),
        ({"format": 1}, "format is 1, not 2; run `recpool train`"),
        ({"format": "two"}, "format is 'two'"),
        ({"version": "4"}, "version is 4, its folder 1"),
        ({"files": {"../secret": {"sha256": "", "bytes": 1}}}, "outside of the release"),
        ({"files": {"/etc/passwd": {"sha256": "", "bytes": 1}}}, "outside of the release"),
        ({"items": "many"}, "items: .*publish the release again"),
    ],
)
def test_a_manifest_that_does_not_fit_is_refused_by_its_field(repository, fields, said):
    publish(repository)
    edit_manifest(repository, **fields)
    with pytest.raises(ArtifactError, match=said):
        repository.verify("1")


def test_a_folder_without_a_manifest_was_written_by_half(repository):
    (repository.folder / "1").mkdir(parents=True)
    with pytest.raises(ArtifactError, match="written by half.*recpool release gc"):
        repository.verify("1")


def test_aliases_from_before_the_log_still_hold(repository):
    publish(repository)
    publish(repository)
    (repository.folder / "aliases.json").write_text('{"champion": "1"}')
    assert repository.champion() == "1"
    repository.point(SHADOW, "2")
    assert repository.aliases() == {CHAMPION: "1", SHADOW: "2"}


def test_several_aliases_change_at_once_if_they_are_still_what_was_expected(repository):
    for _ in range(3):
        publish(repository)
    repository.point(CHAMPION, "1")
    repository.point(CHALLENGER, "2")
    repository.change("promoted", "2", {CHAMPION: "2", CHALLENGER: None}, "better", expected={CHAMPION: "1"})
    assert repository.aliases() == {CHAMPION: "2"}
    with pytest.raises(Conflict, match="champion is 2 by now, not 1"):
        repository.change("promoted", "3", {CHAMPION: "3"}, expected={CHAMPION: "1"})
    assert [(each.event, each.reason) for each in repository.history("2")] == [
        ("made challenger", ""), ("promoted", "better")
    ]  # fmt: skip


def test_an_unknown_alias_lists_the_known_ones(repository):
    publish(repository)
    with pytest.raises(NotFound, match="champion, challenger, shadow"):
        repository.point("chapmion", "1")


def test_what_an_alias_names_or_a_process_holds_is_not_removed(repository):
    publish(repository)
    publish(repository)
    repository.point(CHALLENGER, "1")
    with pytest.raises(Conflict, match="is the challenger"):
        repository.remove("1")
    with repository.hold("2"), pytest.raises(Conflict, match="in use by a running process"):
        repository.remove("2")
    assert repository.remove("2") > 0
    assert repository.versions() == ["1"]
    with pytest.raises(NotFound):
        repository.hold("2")


def an_onnx_model(file: Path) -> None:
    """y [batch, 4] = x [batch, 4] + w; the weight is no input of the model."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in "xy")
    weight = helper.make_tensor("w", TensorProto.FLOAT, [4], [0.0] * 4)
    ids = helper.make_tensor_value_info("ids", TensorProto.INT64, ["batch"])
    graph = helper.make_graph([helper.make_node("Add", ["x", "w"], ["y"])], "g", [x, ids], [y], [weight])
    file.parent.mkdir(parents=True)
    onnx.save(helper.make_model(graph), str(file))


def test_the_models_of_a_release_are_a_triton_repository(repository):
    """Triton's own message says what the configuration means."""
    with repository.draft(dict(ABOUT)) as draft:
        an_onnx_model(draft.folder / "models" / "fine_user" / "1" / "model.onnx")
    file = repository.path("1") / "models" / "fine_user" / "config.pbtxt"
    config = text_format.Parse(file.read_text(), model_config_pb2.ModelConfig())
    assert (config.name, config.platform, config.max_batch_size) == ("fine_user", "onnxruntime_onnx", 0)
    types = model_config_pb2.DataType
    assert [(each.name, types.Name(each.data_type), list(each.dims)) for each in config.input] == [
        ("x", "TYPE_FP32", [-1, 4]), ("ids", "TYPE_INT64", [-1])
    ]  # fmt: skip
    assert [(each.name, list(each.dims)) for each in config.output] == [("y", [-1, 4])]
    assert "models/fine_user/config.pbtxt" in repository.verify("1").files


def test_releases_kept_elsewhere_are_the_same_on_every_machine(tmp_path):
    """Two machines, each with a folder of its own, over one store."""
    one, two = (
        open_releases(
            build_settings({"home": tmp_path / name, "dataset": "d", "releases": {"url": f"memory://{tmp_path}"}})
        )
        for name in ("one", "two")
    )
    assert publish(one, "first") == "1"
    assert publish(two, "second") == "2"
    one.point(CHAMPION, "2", "better")
    assert (two.champion(), two.versions()) == ("2", ["1", "2"])
    assert (one.path("2") / "models" / "a.txt").read_text() == "second"
    assert list(two.verify("1").files) == ["models/a.txt"]
    two.remove("1")
    assert one.versions() == ["2"]
    assert publish(one) == "3"


def test_a_store_that_lost_a_part_is_refused_by_the_file(tmp_path):
    one, two = (ReleaseRepository(tmp_path / name, RemoteReleases(f"file://{tmp_path}/store")) for name in "ab")
    publish(one)
    (tmp_path / "store" / "1" / "models" / "a.txt").write_text("HELLO")
    with pytest.raises(ArtifactError, match="models/a.txt differs"):
        two.verify("1")
