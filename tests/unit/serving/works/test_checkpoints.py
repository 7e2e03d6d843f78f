"""A checkpoint is wholly there or not at all."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from configs.errors import ArtifactError
from pool import checkpoints
from serving.works.saved import Saved, read_state, write_state


class Counter:
    """A work that counts."""

    def __init__(self, failing: bool = False):
        self.count, self.failing = 0, failing

    def step(self, units: int) -> int:
        self.count += units
        return units

    def save(self, folder: Path) -> None:
        write_state(folder, "counter", Saved({"count": self.count}, {"t": torch.ones(2)}, {"a": np.arange(3)}))
        if self.failing:
            raise OSError("the disk is full")

    def restore(self, folder: Path) -> None:
        self.count = read_state(folder, "counter").values["count"]

    def progress(self): ...

    def result(self): ...


def test_the_newest_two_are_kept(tmp_path):
    work = Counter()
    for _ in range(5):
        work.step(1)
        checkpoints.write(tmp_path, work)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-00000004", "checkpoint-00000005"]
    restored = Counter()
    assert checkpoints.restore_latest(tmp_path, restored) == checkpoints.latest(tmp_path)
    assert restored.count == 5


def test_what_was_saved_comes_back(tmp_path):
    found = read_state(checkpoints.write(tmp_path, Counter()), "counter")
    assert found.values == {"count": 0}
    assert torch.equal(found.tensors["t"], torch.ones(2))
    assert found.arrays["a"].tolist() == [0, 1, 2]


def test_a_save_that_fails_leaves_the_one_before(tmp_path):
    work = Counter()
    before = checkpoints.write(tmp_path, work)
    work.failing = True
    with pytest.raises(OSError, match="full"):
        checkpoints.write(tmp_path, work)
    assert checkpoints.latest(tmp_path) == before


def test_half_written_ones_are_ignored_and_cleared_away(tmp_path):
    before = checkpoints.write(tmp_path, Counter())
    killed, short = tmp_path / ".checkpoint-00000002.ab", tmp_path / "checkpoint-00000009"
    killed.mkdir()
    short.mkdir()
    (short / "state.json").write_text("{}")
    assert checkpoints.latest(tmp_path) == before
    assert checkpoints.write(tmp_path, Counter()).name == "checkpoint-00000010"
    assert not killed.exists()


def test_a_file_that_lost_its_end_makes_it_incomplete(tmp_path):
    work = Counter()
    first = checkpoints.write(tmp_path, work)
    work.step(3)
    second = checkpoints.write(tmp_path, work)
    (second / "tensors.pt").write_bytes((second / "tensors.pt").read_bytes()[:-9])
    restored = Counter()
    assert checkpoints.restore_latest(tmp_path, restored) == first


def test_a_damaged_one_falls_back_to_the_one_before(tmp_path):
    work = Counter()
    first = checkpoints.write(tmp_path, work)
    work.step(3)
    second = checkpoints.write(tmp_path, work)
    size = (second / "tensors.pt").stat().st_size
    (second / "tensors.pt").write_bytes(b"x" * size)
    restored = Counter()
    assert checkpoints.restore_latest(tmp_path, restored) == first
    assert restored.count == 0
    (first / "tensors.pt").write_bytes(b"x" * size)
    with pytest.raises(ArtifactError, match="not a readable checkpoint"):
        checkpoints.restore_latest(tmp_path, restored)


def test_without_any_there_is_none(tmp_path):
    assert checkpoints.latest(tmp_path / "nowhere") is None
    assert checkpoints.restore_latest(tmp_path, Counter()) is None


def test_another_kinds_checkpoint_is_refused(tmp_path):
    path = checkpoints.write(tmp_path, Counter())
    with pytest.raises(ArtifactError, match="of a counter"):
        read_state(path, "finetune")
