"""Rankers learn from each row's own context, and score it as serving will."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import torch

from features.encoding import PADDING
from features.metrics import auc
from features.schema import FeatureField
from ranking.fine import FineRanker
from ranking.inputs import Fields, RowUsers
from ranking.pipeline import fit, prepare, spec_of, train_rankers, user_table
from ranking.scoring import score_rows
from ranking.store import RankStage
from ranking.training import RankTrainer

DEVICE = FeatureField(name="device", entity="context", kind="categorical")
HOUR = FeatureField(name="hour", entity="context", kind="numeric")
PHONES = 0.7
"""Share of rows from a phone; all of them like what they see, and no other row does."""


@pytest.fixture(scope="module")
def recipe(synthetic):
    schedule = replace(synthetic.SCHEDULE, epochs=4, learning_rate=2e-2)
    return replace(synthetic.RECIPE, fine=schedule, coarse=replace(schedule, distil_weight=1.0))


@pytest.fixture(scope="module")
def fine(recipe):
    """Trains a fine ranker alone."""

    def train(data) -> FineRanker:
        torch.manual_seed(recipe.fine.seed)
        model = FineRanker(spec_of(data, recipe), recipe.fine_model)
        fit(model, data, recipe, recipe.fine, "fine")
        return model

    return train


def moods(synthetic, context):
    """A world where whether a row is liked follows from its context, which users and items know nothing of."""
    world = synthetic.dataset((*synthetic.FIELDS, *context))
    rng = np.random.default_rng(3)
    pairs = [(u, i) for u in range(synthetic.USERS) for i in range(synthetic.ITEMS)]
    phone = rng.random(len(pairs)) < PHONES
    rows = {
        "user_id": [f"u/{u}" for u, _ in pairs],
        "item_id": [f"i {i}" for _, i in pairs],
        "value": pa.array(np.where(phone, 5.0, 2.0), pa.float32()),
        "time_s": rng.permutation(len(pairs)).astype(float),
        "device": np.where(phone, "phone", "tv"),
        "hour": np.where(phone, 8.0, 20.0) + rng.random(len(pairs)),
    }
    return replace(world, interactions=pa.table(rows))


def tastes(synthetic):
    """A world without values where items of even number are met on phones, the others on a TV."""
    world = synthetic.dataset((*synthetic.FIELDS, DEVICE), values=False)
    even = np.array([int(item.split()[1]) % 2 == 0 for item in world.interactions.column("item_id").to_pylist()])
    devices = pa.array(np.where(even, "phone", "tv"))
    return replace(world, interactions=world.interactions.append_column("device", devices))


def thirds(synthetic, world, view="others"):
    """Data with every third row held out."""
    encoder, rows = synthetic.encoded(world)
    held = np.arange(len(rows)) % 3 == 2
    tables = user_table(encoder, world.users), encoder.item_table(world.items)
    parts = rows.take(np.flatnonzero(~held)), rows.take(np.flatnonzero(held))
    return prepare(encoder, *tables, *parts, view, rows if view == "earlier" else None)


def like_auc(data, model):
    like = model.config.objectives.index("like")
    return auc(data.valid.values >= 4.0, data.score(model, data.valid)[:, like])


@pytest.fixture(scope="module")
def world(synthetic):
    return moods(synthetic, (DEVICE, HOUR))


@pytest.fixture(scope="module")
def data(synthetic, world):
    return thirds(synthetic, world)


@pytest.fixture(scope="module")
def rankers(data, recipe):
    return train_rankers(data, recipe)


def test_both_rankers_tell_contexts_apart(data, rankers):
    for name in ("fine", "coarse"):
        assert like_auc(data, getattr(rankers, name).model) > 0.95
        assert rankers.valid_auc[name] > 0.95


@pytest.mark.parametrize("field", [DEVICE, HOUR], ids=lambda field: field.kind)
def test_one_kind_of_context_field_is_enough(synthetic, fine, field):
    data = thirds(synthetic, moods(synthetic, (field,)), "earlier")
    assert like_auc(data, fine(data)) > 0.95


def test_without_context_there_is_nothing_to_tell(synthetic, fine):
    data = thirds(synthetic, moods(synthetic, ()))
    assert data.train.context is None
    assert abs(like_auc(data, fine(data)) - 0.5) < 0.15


def test_a_row_without_context_gets_the_average(data, rankers):
    def liked(part):
        return 1 / (1 + np.exp(-data.score(rankers.fine.model, part)[:, 1]))

    on_phone = data.valid.values >= 4.0
    known, unknown = liked(data.valid), liked(replace(data.valid, context=None))
    assert known[on_phone].mean() > 0.85 and known[~on_phone].mean() < 0.25
    assert abs(unknown.mean() - PHONES) < 0.2


def test_engage_learns_which_items_go_with_a_context(synthetic, recipe):
    data = thirds(synthetic, tastes(synthetic))
    longer = replace(recipe, fine=replace(recipe.fine, epochs=8), coarse=replace(recipe.coarse, epochs=8))
    trained = train_rankers(data, longer.with_objectives("engage"))
    # Items are numbered from 2, so the lowest bit set or not turns an item of one device into one of the other.
    other = replace(data.valid, items=data.valid.items ^ 1)
    for ranker in (trained.fine, trained.coarse):
        found = data.score(ranker.model, data.valid)[:, 0], data.score(ranker.model, other)[:, 0]
        labels = np.repeat([True, False], len(data.valid))
        assert auc(labels, np.concatenate(found)) > 0.8


@pytest.mark.parametrize("name", ["fine", "coarse"])
def test_a_row_scores_offline_as_its_request_does_online(synthetic, world, data, rankers, tmp_path, name):
    encoder, _ = synthetic.encoded(world)
    ranker = getattr(rankers, name)
    ranker.save(tmp_path, encoder.item_table(world.items))
    held = world.interactions.take(np.arange(2, len(world.interactions), 3)).to_pylist()[:9]
    profiles = {row["user_id"]: row for row in world.users.to_pylist()}
    requests = [{**profiles[row["user_id"]], "device": row["device"], "hour": row["hour"]} for row in held]
    part = data.valid.take(np.arange(len(held)))
    history = data.train.histories().latest(part.users, synthetic.LENGTH)
    users = encoder.encode_users(requests).with_history(*history)
    online = RankStage.load(tmp_path, name).rank(users, part.items[:, None])[:, 0]
    offline = ranker.outputs.apply(torch.from_numpy(data.score(ranker.model, part))).numpy()
    np.testing.assert_allclose(online, offline, atol=1e-5)


@pytest.mark.parametrize("name", ["fine", "coarse"])
def test_rows_of_different_contexts_score_in_groups_as_alone(data, rankers, name):
    model = getattr(rankers, name).model
    grouped = [data.rows(data.valid, model.spec.history, size) for size in (1, 7)]
    scores = [score_rows(model, data.users, data.items, rows) for rows in grouped]
    np.testing.assert_allclose(scores[0], scores[1], atol=1e-5)


def test_a_missing_context_scores_as_one_that_is_absent(data, rankers):
    part = data.valid.take(np.arange(40))
    missing = replace(part.context, cat=np.ones_like(part.context.cat), num=data.users.num[[1] * 40, -1:].numpy())
    unknown = data.score(rankers.fine.model, replace(part, context=missing))
    absent = data.score(rankers.fine.model, replace(part, context=None))
    np.testing.assert_allclose(unknown, absent, atol=1e-5)


def test_a_view_has_its_users_profile_and_its_rows_context(data):
    users, rows = torch.tensor([4, 2]), torch.tensor([[0, 3, 5], [1, 1, 2]])
    fields = RowUsers(data.users, data.train.context).take(users, rows)
    context = data.train.context
    for g in range(2):
        for r in range(3):
            row = int(rows[g, r])
            profile = data.users.cat[users[g], :-1].tolist()
            assert fields.cat[g, r].tolist() == [*profile, *context.cat[row].tolist()]
            number = data.users.num[users[g], :-1].tolist()
            assert fields.num[g, r].tolist() == [*number, *context.num[row].tolist()]
            assert torch.equal(fields.multi[g, r], data.users.multi[users[g]])
    dropped = RowUsers(data.users, context).take(users, rows, dropout=1.0)
    assert torch.equal(dropped.cat, data.users.cat[users].unsqueeze(1).expand(-1, 3, -1))
    assert torch.equal(dropped.num, data.users.num[users].unsqueeze(1).expand(-1, 3, -1))


def test_users_without_context_are_taken_once_a_group_and_draw_nothing():
    table = Fields(torch.full((4, 2), PADDING), torch.zeros(4, 0), torch.zeros(4, 0, 1, dtype=torch.long))
    before = torch.get_rng_state()
    assert RowUsers(table, None).take(torch.tensor([1, 3]), torch.zeros(2, 5).long(), 0.5).cat.shape == (2, 2)
    assert torch.equal(before, torch.get_rng_state())


def test_a_stopped_run_with_context_resumes_to_the_same_weights(synthetic, data):
    def trainer(seed):
        torch.manual_seed(seed)
        rows = data.rows(data.train, data.spec.history, synthetic.SCHEDULE.group_rows)
        model = FineRanker(data.spec, synthetic.FINE)
        return RankTrainer(model, data.users, data.items, rows, synthetic.RECIPE, synthetic.SCHEDULE)

    whole, first, second = trainer(0), trainer(0), trainer(9)
    for _ in range(12):
        whole.step()
    for _ in range(5):
        first.step()
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second.load_state_dict(torch.load(file, weights_only=True))
    torch.rand(7)
    for _ in range(7):
        second.step()
    for name, weights in whole.averaged().items():
        assert torch.equal(weights, second.averaged()[name]), name
