"""Evaluation counts what is found of the held-out events, and compares releases user by user."""

from __future__ import annotations

import numpy as np
import pytest

from configs.errors import ConfigError, NotFound
from features.datasets import Dataset
from features.holding_out import held_out
from pool import checkpoints
from serving.works.evaluate import EvaluateWork
from serving.works.holdout import Holdout, HoldoutStore
from serving.works.options import EvaluateOptions


@pytest.fixture(scope="module")
def second(world, trained, home) -> str:
    """Another release of the same data."""
    work = world.make_finetune(home, place="second", seed=5, most_rows=60)
    world.run(work)
    return work.result()["version"]


@pytest.fixture
def make(world, home):
    works = []

    def build(*versions: str, **options) -> EvaluateWork:
        chosen = EvaluateOptions(**{"versions": versions, "k": 5, "batch": 2, **options})
        works.append(EvaluateWork(world.dataset(), world.make_settings(home), chosen))
        return works[-1]

    yield build
    for work in works:
        work.close()


def held_out_by_hand(data: Dataset) -> dict[str, set[str]]:
    """Items that users met in held-out events and no other."""
    rows = list(zip(data.interactions.to_pylist(), held_out(data), strict=True))
    seen = {(row["user_id"], row["item_id"]) for row, held in rows if not held}
    found: dict[str, set[str]] = {}
    for row in (row for row, held in rows if held):
        if (row["user_id"], row["item_id"]) not in seen:
            found.setdefault(row["user_id"], set()).add(row["item_id"])
    return found


def test_held_out_events_are_not_in_the_store(world):
    data = world.dataset()
    holdout = Holdout.of(data, 100, 0)
    wanted = held_out_by_hand(data)
    found = {u: set(items) for u, items in zip(holdout.users, holdout.relevant, strict=True)}
    assert found == wanted
    events = data.interactions.to_pylist()
    for user, record in zip(holdout.users, HoldoutStore(data, holdout, 100, 0.0).fetch(holdout.users), strict=True):
        assert record is not None
        before = sum(row["user_id"] == user for row in events) - len(wanted[user])
        assert len(record.item_hashes) == before
        assert record.features["city"].startswith("c")


def test_some_users_are_some_of_all(world):
    assert len(Holdout.of(world.dataset(), 3, 0).users) == 3
    assert Holdout.of(world.dataset(), 3, 1).users == Holdout.of(world.dataset(), 3, 1).users


def test_two_releases_are_measured_and_compared(world, second, make):
    work = make("1", second)
    world.run(work)
    result = work.result()
    assert result["users"] == len(held_out_by_hand(world.dataset()))
    for version in ("1", second):
        figures = result["releases"][version]
        for funnel in ("recall", "cascade"):
            assert 0.0 <= figures[funnel]["recall@5"] <= 1.0
            assert 0.0 <= figures[funnel]["ndcg@5"] <= 1.0
        assert set(figures["auc"]) == {"fine", "coarse"}
        assert all(0.0 <= value <= 1.0 for value in figures["auc"].values())
    pair = result["pairs"][f"1 {second}"]
    assert 0.0 < pair["overlap@5"] <= 1.0
    assert 0.0 <= pair["equal_share"] <= pair["overlap@5"]


def test_recall_is_the_share_that_a_hand_count_finds(world, second, make):
    work = make("1")
    world.run(work)
    wanted, shares = held_out_by_hand(world.dataset()), []
    ids = world.dataset().items.column("item_id").to_pylist()
    slates = work._slates["1 cascade"].items
    for user, slate in zip(Holdout.of(world.dataset(), 100, 0).users, slates, strict=True):
        found = {ids[place] for place in slate if place >= 0}
        shares.append(len(found & wanted[user]) / len(wanted[user]))
    assert work.result()["releases"]["1"]["cascade"]["recall@5"] == pytest.approx(np.mean(shares))


@pytest.mark.parametrize("stop", [13, 17, 30])
def test_a_stopped_evaluation_ends_with_the_same_figures(world, second, make, tmp_path, stop):
    whole = make("1", second)
    world.run(whole)
    first = make("1", second)
    first.step(stop)
    checkpoints.write(tmp_path, first)
    again = make("1", second)
    assert checkpoints.restore_latest(tmp_path, again)
    world.run(again)
    assert again.result() == whole.result()


def test_what_cannot_be_evaluated_is_named(world, trained, make):
    with pytest.raises(NotFound, match="no release serves"):
        make()
    with pytest.raises(NotFound, match="no release '77'"):
        make("77")
    with pytest.raises(ConfigError, match="twice"):
        make("1", "1")
