"""A write is wholly visible or not at all."""

from __future__ import annotations

import pytest

from features.files import atomic_directory, write_atomically


def test_a_finished_folder_replaces_the_old_one(tmp_path):
    target = tmp_path / "out"
    for content in ("old", "new"):
        with atomic_directory(target) as scratch:
            (scratch / f"{content}.txt").write_text(content)
    assert [path.name for path in target.iterdir()] == ["new.txt"]
    assert list(tmp_path.iterdir()) == [target]


def test_an_interrupted_write_leaves_the_old_folder_and_no_scratch(tmp_path):
    target = tmp_path / "out"
    with atomic_directory(target) as scratch:
        (scratch / "kept").write_text("kept")
    with pytest.raises(KeyboardInterrupt), atomic_directory(target) as scratch:
        (scratch / "half").write_text("half")
        raise KeyboardInterrupt
    assert [path.name for path in target.iterdir()] == ["kept"]
    assert list(tmp_path.iterdir()) == [target]


def test_one_file_is_replaced_as_a_whole(tmp_path):
    target = tmp_path / "file"
    write_atomically(target, b"one")
    write_atomically(target, b"two")
    assert target.read_bytes() == b"two"
    assert list(tmp_path.iterdir()) == [target]
