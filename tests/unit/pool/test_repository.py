from __future__ import annotations

import threading

import pytest

from configs.errors import ArtifactError, NotFound
from pool.repository import CHAMPION, ReleaseRepository

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
