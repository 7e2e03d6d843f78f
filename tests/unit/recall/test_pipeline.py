from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
import torch

from features.encoding import UserBatch
from recall import training
from recall.merge import Merged, merge, source_names
from recall.pipeline import Recall, RecallData, build_recall
from recall.recipes import RecallRecipe, TowerSettings, recipe
from recall.sources import RecallRequest
from recall.training import TowerTrainer
from recall.two_tower import TowerShape

SMALL = RecallRecipe(TowerSettings(dim=9, hidden=16, epochs=30, batch=16, learning_rate=0.01), neighbours=10)
QUOTAS = {"ann": 10, "item_to_item": 10, "popular": 10, "fresh": 3}


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def trainer(data: RecallData, **changes) -> TowerTrainer:
    settings = dataclasses.replace(SMALL.tower, **changes)
    return TowerTrainer(TowerShape.of(data.encoder), data.users, data.items, data.rows, 12, settings, seed=3)


def ask(data: RecallData, session: onnxruntime.InferenceSession, users: np.ndarray) -> RecallRequest:
    batch = data.users.take(users).with_history(*data.rows.histories().latest(users, 12))
    names = {i.name for i in session.get_inputs()}
    (vectors,) = session.run(None, {k: v for k, v in batch.inputs().items() if k in names})
    return RecallRequest(batch, vectors, batch.history)


def recalled(recall: Recall, request: RecallRequest, limit: int) -> Merged:
    results = {name: recall.sources[name].retrieve(request, quota) for name, quota in QUOTAS.items()}
    return merge(results, QUOTAS, limit)


@pytest.fixture(scope="module")
def built(tmp_path_factory, worlds) -> dict[str, Path]:
    """Folders of the recall parts trained on each world; building twice would double the time of the module."""
    folders = {name: tmp_path_factory.mktemp(name) for name in worlds}
    for name, folder in folders.items():
        figures = build_recall(worlds[name], SMALL, folder, folder / "model.onnx", item_tower_path=folder / "item.onnx")
        assert figures["onnx_difference"] <= 1e-5
    return folders


@pytest.mark.parametrize("variant", ["full", "bare"])
def test_train_write_load_recommend(worlds, built, variant):
    """Users are recalled unseen items of their own camp; the bare world has ids only, no times."""
    world, folder = worlds[variant], built[variant]
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    assert [o.name for o in session.get_outputs()] == ["user_vector"]
    recall = Recall.load(folder, items=30)
    users = np.arange(2, 12)
    request = ask(world, session, users)
    merged = recalled(recall, request, 5)
    assert (merged.items >= 2).all()
    assert not any(set(m) & set(h) for m, h in zip(merged.items.tolist(), request.users.history.tolist(), strict=True))
    own = (merged.items - 2) % 2 == (users[:, None] - 2) % 2
    assert own.mean() > 0.9


def test_a_batch_of_one_equals_its_row_and_a_cold_user_is_answered(worlds, built):
    data, folder = worlds["full"], built["full"]
    session = onnxruntime.InferenceSession(str(folder / "model.onnx"))
    recall = Recall.load(folder)
    users = np.arange(2, 8)
    together = recalled(recall, ask(data, session, users), 20)
    for row, user in enumerate(users):
        alone = recalled(recall, ask(data, session, np.array([user])), 20)
        np.testing.assert_array_equal(alone.items[0], together.items[row][: alone.items.shape[1]])
    unknown = data.users.take(np.array([1]))
    cold = RecallRequest(unknown, session_vectors(session, unknown), np.zeros((1, 0), np.int32))
    assert (recalled(recall, cold, 20).items[0, :10] >= 2).all()


def test_the_item_tower_gives_each_item_the_vector_that_the_index_has(worlds, built):
    data, folder = worlds["full"], built["full"]
    session = onnxruntime.InferenceSession(str(folder / "item.onnx"))
    known = np.arange(2, 12)
    (found,) = session.run(["item_vector"], data.items.take(known).inputs())
    np.testing.assert_allclose(found, np.load(folder / "item_vectors.npy")[known], atol=1e-5)


def nobody(rows: int, excluded: np.ndarray | None = None) -> RecallRequest:
    """Users as similar items are asked for: without fields, history or vectors."""
    users = UserBatch(*(np.zeros((rows, *shape), np.int32) for shape in ((1,), (0,), (0, 1), (0,), (0,))))
    return RecallRequest(users, None, np.zeros((rows, 0), np.int32) if excluded is None else excluded)


def test_items_like_a_seed_are_of_its_camp_and_not_the_seed(built):
    near, failed = Recall.load(built["full"]).similar(np.array([[2]], np.int32), nobody(1), 5)
    assert 2 not in near.items and (near.items[0, 0] - 2) % 2 == 0 and failed == ()


def test_a_row_without_a_known_seed_gets_popular_items_and_is_named_and_the_others_do_not_change(built):
    recall = Recall.load(built["full"])
    seeds = np.array([[2, 0], [0, 0], [1, 999]], np.int32)
    excluded = np.full((3, 1), recall.popular.overall[0])
    together, failed = recall.similar(seeds, nobody(3, excluded), 5)
    assert failed == (("ann", "no_known_seed"), ("item_to_item", "no_known_seed"))
    for row in (1, 2):
        assert together.items[row].tolist() == recall.popular.overall[1:6].tolist()
        assert source_names(int(together.sources[row, 0])) == ["popular"]
    alone, _ = recall.similar(seeds[:1], nobody(1, excluded[:1]), 5)
    np.testing.assert_array_equal(together.items[0], alone.items[0])
    assert not any("popular" in source_names(int(mask)) for mask in together.sources[0])


def session_vectors(session, batch) -> np.ndarray:
    names = {i.name for i in session.get_inputs()}
    return session.run(None, {k: v for k, v in batch.inputs().items() if k in names})[0]


def test_an_interrupted_training_resumes_to_the_same_weights(data, tmp_path):
    whole, first = trainer(data), trainer(data)
    for _ in range(7):
        whole.step()
    for _ in range(3):
        first.step()
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = trainer(data)
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    for _ in range(4):
        second.step()
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, second.model.state_dict()[name]), name


def test_the_tower_never_sees_what_it_is_asked(data):
    batch = trainer(data).examples.batch(0)
    assert batch.asked.any(1).all()
    for row in range(len(batch.users)):
        assert not set(batch.events[row][batch.asked[row]]) & set(batch.history[row][batch.history[row] > 0])


def test_a_sampled_softmax_also_learns(data, monkeypatch):
    monkeypatch.setattr(training, "FULL_SOFTMAX_UP_TO", 5)
    sampled = trainer(data, negatives=10)
    losses = [sampled.step() for _ in range(60)]
    assert np.mean(losses[-10:]) < np.mean(losses[:10])
    assert np.isfinite(sampled.item_vectors()).all()


def test_items_without_a_training_row_get_the_trained_bucket_not_noise(data):
    seen = dataclasses.replace(data, rows=data.rows.take(np.flatnonzero(data.rows.items != 9)))
    model = trainer(seen)
    vectors = model.item_vectors()
    model.model.item.id.weight.data[9] = 100.0
    np.testing.assert_array_equal(model.item_vectors()[9], vectors[9])


def test_an_unknown_recipe_lists_the_known_ones():
    with pytest.raises(Exception, match="quick"):
        recipe("slow")
