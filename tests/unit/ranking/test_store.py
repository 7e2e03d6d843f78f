"""Saved rankers score alike under both engines, and refuse what does not fit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from configs.errors import ArtifactError
from ranking.export import check_parity
from ranking.fine import FineRanker
from ranking.graphs import CrossGraph, UserGraph
from ranking.pipeline import outputs_of, spec_of, user_table
from ranking.store import RankStage, TrainedRanker

NAMES = ["fine", "coarse"]


def users_of(synthetic, world, count=5):
    encoder, rows = synthetic.encoded(world)
    batch = user_table(encoder, world.users).take(np.arange(count))
    return batch.with_history(*rows.histories().latest(batch.cat[:, 0], synthetic.LENGTH))


def both_engines(folder, name, users, items):
    return [RankStage.load(folder, name, engine).rank(users, items) for engine in ("onnx", "torch")]


@pytest.fixture(scope="module")
def users(synthetic, world):
    return users_of(synthetic, world)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("batch,count", [(1, 1), (1, 9), (5, 4)])
def test_onnx_and_torch_agree(saved, users, name, batch, count):
    items = np.random.default_rng(0).integers(1, 26, (batch, count))
    found = both_engines(saved, name, users.take(np.arange(batch)), items)
    assert found[0].shape == (batch, count, 3) and found[0].dtype == np.float32
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)


@pytest.mark.parametrize("name", NAMES)
def test_objectives_are_probabilities_and_a_rating_in_range(saved, users, name):
    objectives = RankStage.load(saved, name).rank(users, np.tile(np.arange(1, 26), (5, 1)))
    assert ((objectives[..., :2] > 0) & (objectives[..., :2] < 1)).all()
    assert ((objectives[..., 2] >= 2.0) & (objectives[..., 2] <= 5.0)).all()


@pytest.mark.parametrize("name", NAMES)
def test_scores_do_not_depend_on_batch_mates(saved, users, name):
    stage = RankStage.load(saved, name)
    items = np.random.default_rng(1).integers(1, 26, (5, 6))
    together = stage.rank(users, items)
    for row in range(5):
        alone = stage.rank(users.take(np.array([row])), items[row : row + 1])
        np.testing.assert_allclose(alone[0], together[row], atol=1e-6)


def test_padding_is_marked_and_no_candidates_reach_no_model(saved, users):
    stage = RankStage.load(saved, "fine")
    found = stage.rank(users, np.array([[4, 0]] * 5))
    assert np.isfinite(found[:, 0]).all() and np.isnan(found[:, 1]).all()
    assert stage.score({}, np.zeros((5, 0), np.int32)).shape == (5, 0, 3)


@pytest.mark.parametrize("name", NAMES)
def test_files_that_score_unlike_the_model_are_refused(saved, rankers, name):
    trained = getattr(rankers, name)
    graphs = UserGraph(trained.model), CrossGraph(trained.model, trained.outputs)
    states = np.load(saved / "ranking" / f"{name}_items.npy")
    assert check_parity(*graphs, states, saved / "models", name) <= 1e-5
    with torch.no_grad():
        trained.model.out.bias += 1e-3
    try:
        with pytest.raises(ArtifactError, match=f"ONNX differs from torch by .* {name}_cross"):
            check_parity(*graphs, states, saved / "models", name)
    finally:
        with torch.no_grad():
            trained.model.out.bias -= 1e-3


@pytest.mark.parametrize("entity", ["user", "item"])
def test_absent_kinds_of_field_leave_the_graph(synthetic, tmp_path, entity):
    world = synthetic.dataset(tuple(f for f in synthetic.FIELDS if f.entity == entity))
    data = synthetic.rank_data(world)
    model = FineRanker(spec_of(data, synthetic.RECIPE), synthetic.FINE)
    trained = TrainedRanker("fine", model, outputs_of(data, synthetic.RECIPE))
    trained.save(tmp_path, synthetic.encoded(world)[0].item_table(world.items))
    profile = ("user_cat", "user_num", "user_multi") if entity == "user" else ("user_cat",)
    assert UserGraph(trained.model).inputs == (*profile, "history", "signal")
    found = both_engines(tmp_path, "fine", users_of(synthetic, world), np.full((5, 2), 3))
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)


def test_a_longer_history_than_trained_with_is_cut(saved, users):
    stage = RankStage.load(saved, "fine")
    more = ((0, 0), (0, 4))
    longer = users.with_history(
        np.pad(users.history, more, constant_values=3), np.pad(users.signal, more, constant_values=2)
    )
    items = np.full((5, 1), 4)
    np.testing.assert_array_equal(stage.rank(longer, items), stage.rank(users, items))


def test_a_damaged_ranker_is_refused_with_its_file(saved, tmp_path, synthetic, world):
    with pytest.raises(ArtifactError, match="fine_items.npy"):
        RankStage.load(tmp_path, "fine")
    trained = TrainedRanker.load(saved, "fine")
    trained.save(tmp_path, synthetic.encoded(world)[0].item_table(world.items))
    np.save(tmp_path / "ranking" / "fine_items.npy", np.zeros((3, 3), np.float32))
    with pytest.raises(ArtifactError, match="3 rows"):
        RankStage.load(tmp_path, "fine")
    (tmp_path / "ranking" / "fine.pt").write_bytes(b"not weights")
    with pytest.raises(ArtifactError, match="fine"):
        TrainedRanker.load(tmp_path, "fine")
    (tmp_path / "ranking" / "fine.json").write_text('{"kind": "finest"}')
    with pytest.raises(ArtifactError, match="fine.json.*finest.*coarse"):
        TrainedRanker.load(tmp_path, "fine")


def test_weights_survive_the_disk(saved, rankers):
    loaded = TrainedRanker.load(saved, "coarse").model.state_dict()
    assert all(torch.equal(t, loaded[name]) for name, t in rankers.coarse.model.state_dict().items())
