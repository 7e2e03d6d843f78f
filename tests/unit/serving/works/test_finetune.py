"""A fine-tune can be stopped anywhere, and what comes out is the same to the last bit."""

from __future__ import annotations

import multiprocessing
import shutil
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from configs.errors import ArtifactError, ConfigError, DataError, NotFound
from pool import checkpoints
from pool.repository import ReleaseRepository
from serving.build import build_release
from serving.works.options import WHOLE, Grouping

STOPS = 20


def release_files(world, work, home: Path) -> dict[str, bytes]:
    version = work.result()["version"]
    return world.files(home / "releases" / "tiny" / version)


def assert_same(found: dict[str, bytes], expected: dict[str, bytes]) -> None:
    assert sorted(found) == sorted(expected)
    assert [name for name in found if found[name] != expected[name]] == []


def test_uncut_it_is_the_release_that_building_gives(world, tmp_path):
    """Bit for bit, so that the pool's training is the command line's."""
    settings = world.make_settings(tmp_path)
    built = world.files(tmp_path / "releases" / "tiny" / build_release(world.dataset(), settings, "quick"))
    work = world.make_finetune(tmp_path, epochs=None, grouping=WHOLE)
    world.run(work)
    assert_same(release_files(world, work, tmp_path), built)


def test_stopped_at_20_random_points_it_ends_with_the_same_bits(world, home, expected, tmp_path):
    """Each time another object goes on from the checkpoint, and units are grouped into other steps."""
    rng = np.random.default_rng(0)
    work = world.make_finetune(tmp_path)
    units = trained_units(world, tmp_path)
    stops = np.sort(rng.choice(np.arange(1, units), STOPS, replace=False))
    done = 0
    for stop in stops:
        while done < stop:
            done += work.step(int(min(stop - done, rng.integers(1, 9))))
        checkpoints.write(tmp_path / "checkpoints", work)
        torch.rand(3)  # other users of torch's generator must not matter
        work = world.make_finetune(tmp_path)
        assert checkpoints.restore_latest(tmp_path / "checkpoints", work)
        work.step(len(work.training.reading()))
    world.run(work)
    assert_same(release_files(world, work, tmp_path), expected)


def trained_units(world, home: Path) -> int:
    work, units = world.make_finetune(home, place="counted"), 0
    while done := work.step(50):
        units += done
    return units


def train_and_save(world, home: Path) -> None:
    work = world.make_finetune(home)
    while work.step(3):
        checkpoints.write(home / "checkpoints", work)
    work.result()


def test_killed_between_checkpoints_it_ends_with_the_same_bits(world, expected, tmp_path):
    """A process is killed with SIGKILL somewhere after a checkpoint; another one goes on."""
    process = multiprocessing.get_context("fork").Process(target=train_and_save, args=(world, tmp_path))
    process.start()
    written = set()
    while len(written) < 6 and process.is_alive():
        written |= {checkpoints.latest(tmp_path / "checkpoints")} - {None}
        time.sleep(0.005)
    process.kill()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    work = world.make_finetune(tmp_path)
    assert checkpoints.restore_latest(tmp_path / "checkpoints", work)
    world.run(work)
    assert_same(release_files(world, work, tmp_path), expected)


def test_saved_before_it_has_read_the_data_again_a_restored_work_loses_nothing(world, expected, tmp_path):
    work = world.make_finetune(tmp_path)
    work.step(30)
    for _ in range(2):
        checkpoints.write(tmp_path / "checkpoints", work)
        work = world.make_finetune(tmp_path)
        checkpoints.restore_latest(tmp_path / "checkpoints", work)
        work.step(2)
    world.run(work)
    assert_same(release_files(world, work, tmp_path), expected)


def test_a_result_asked_for_twice_is_published_once(world, trained, home):
    first = trained.result()["version"]
    assert trained.result()["version"] == first
    assert ReleaseRepository(home / "releases" / "tiny").versions().count(first) == 1


def test_killed_after_publishing_it_does_not_publish_again(world, tmp_path):
    work = world.make_finetune(tmp_path, most_rows=60)
    world.run(work)
    checkpoints.write(tmp_path / "checkpoints", work)
    version = work.result()["version"]
    again = world.make_finetune(tmp_path, most_rows=60)
    checkpoints.restore_latest(tmp_path / "checkpoints", again)
    world.run(again)
    assert again.result()["version"] == version


def test_progress_rises_to_its_total(world, tmp_path):
    work, shares, doing = world.make_finetune(tmp_path), [], []
    while work.step(5):
        shares.append(work.progress().done)
        doing.append(work.progress().doing)
    assert shares == sorted(shares)
    assert work.progress().done == work.progress().total
    assert {"training the two-tower", "training the fine ranker", "training the coarse ranker"} <= set(doing)


def test_progress_of_a_restored_work_goes_on_where_it_was_saved(world, tmp_path):
    work = world.make_finetune(tmp_path)
    work.step(len(work.training.reading()) + 20)
    checkpoints.write(tmp_path / "checkpoints", work)
    again = world.make_finetune(tmp_path)
    checkpoints.restore_latest(tmp_path / "checkpoints", again)
    again.step(len(again.training.reading()))
    assert again.progress().done == work.progress().done
    again.step(2)
    assert again.progress().done == work.progress().done + 1  # the first of them sets the trainer up


def test_a_checkpoint_of_another_work_is_refused(world, tmp_path):
    work = world.make_finetune(tmp_path)
    work.step(8)
    path = checkpoints.write(tmp_path / "checkpoints", work)
    for other in ({"seed": 1}, {"grouping": Grouping()}):
        with pytest.raises(ArtifactError, match="another options"):
            world.make_finetune(tmp_path, **other).restore(path)
    with pytest.raises(ArtifactError, match="another dataset"):
        world.make_finetune(tmp_path, data=world.dataset(extra=1)).restore(path)
    with pytest.raises(ArtifactError, match="not begun"):
        work.restore(path)


def test_it_begins_with_the_weights_of_a_release_where_values_are_known(world, trained, home):
    """Two users and items stand before the old ones now, so every row has moved."""
    data = world.dataset(extra=2)
    work = world.make_finetune(home, place="warm", data=data, start_from="1")
    work.step(len(work.training.reading()))
    tower = work.training.begin_tower(False).trainer.model
    old = torch.load(home / "releases" / "tiny" / "1" / "recall" / "tower.pt", weights_only=True)
    fine = work.training.begin_ranker("fine", False).trainer.model
    old_fine = torch.load(home / "releases" / "tiny" / "1" / "ranking" / "fine.pt", weights_only=True)
    for state, name, was in (
        (tower.state_dict(), "item.id.weight", old),
        (fine.state_dict(), "history.items.weight", old_fine),
    ):
        assert torch.equal(state[name][4:], was[name][2:]), name
        assert torch.equal(state[name][:2], was[name][:2]), name
    assert torch.equal(tower.state_dict()["user.widen.weight"], old["user.widen.weight"])
    assert torch.equal(fine.state_dict()["user_bias.weight"][4:], old_fine["user_bias.weight"][2:])


def test_weights_of_another_recipe_are_refused(world, trained, home):
    work = world.make_finetune(home, place="other", recipe="full", start_from="1")
    work.step(len(work.training.reading()))
    with pytest.raises(ConfigError, match="recipe"):
        work.training.begin_tower(False)


def test_a_release_without_a_towers_weights_says_what_to_do(world, trained, home, tmp_path):
    """One published by an earlier build: it serves, and cannot be begun with."""
    shutil.copytree(home / "releases" / "tiny" / "1", tmp_path / "releases" / "tiny" / "1")
    (tmp_path / "releases" / "tiny" / "1" / "recall" / "tower.pt").unlink()
    with pytest.raises(ArtifactError, match="release 1 has no recall/tower.pt.*recpool train"):
        world.make_finetune(tmp_path, start_from="1")


def test_what_is_not_there_is_named(world, tmp_path):
    with pytest.raises(NotFound, match="no release '7'"):
        world.make_finetune(tmp_path, start_from="7")
    with pytest.raises(ConfigError, match="no recall recipe 'slow'"):
        world.make_finetune(tmp_path, recipe="slow")
    with pytest.raises(DataError, match="no readable dataset"):
        world.make_finetune(tmp_path, data=tmp_path / "nothing")
