"""Training can stop anywhere and go on as if it had not; the student nears its teacher."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from configs.errors import ConfigError, DataError
from features.metrics import auc
from ranking.coarse import CoarseRanker
from ranking.fine import FineRanker
from ranking.losses import sampled_softmax
from ranking.pipeline import fit, objectives_of, prepare, train_rankers
from ranking.recipes import recipe_named
from ranking.training import RankTrainer


def trainer(synthetic, data, seed=0, **schedule):
    torch.manual_seed(seed)
    model = FineRanker(data.spec, synthetic.FINE)
    chosen = replace(synthetic.SCHEDULE, **schedule)
    rows = data.rows(data.train, data.spec.history, chosen.group_rows)
    return RankTrainer(model, data.users, data.items, rows, synthetic.RECIPE, chosen)


@pytest.mark.parametrize(("micro", "stop"), [(1, 11), (3, 4)])
def test_a_stopped_run_resumes_to_the_same_weights(synthetic, data, micro, stop):
    whole = trainer(synthetic, data, micro=micro)
    for _ in range(16):
        whole.step()
    first = trainer(synthetic, data, micro=micro)
    for _ in range(stop):
        first.step()
    file = io.BytesIO()
    torch.save(first.state_dict(), file)
    file.seek(0)
    second = trainer(synthetic, data, seed=99, micro=micro)
    second.load_state_dict(torch.load(file, weights_only=True))
    torch.rand(7)  # other users of torch's global generator must not matter
    for _ in range(16 - stop):
        second.step()
    for name, weights in whole.averaged().items():
        assert torch.equal(weights, second.averaged()[name]), name
    for name, weights in whole.model.state_dict().items():
        assert torch.equal(weights, second.model.state_dict()[name]), name


def test_micro_steps_move_the_weights_only_when_complete(synthetic, data):
    run = trainer(synthetic, data, micro=4)
    before = run.model.deep_in.weight.detach().clone()
    for _ in range(3):
        run.step()
    assert torch.equal(before, run.model.deep_in.weight)
    run.step()
    assert not torch.equal(before, run.model.deep_in.weight)


def test_the_fine_ranker_learns_the_worlds_taste(synthetic, data):
    torch.manual_seed(0)
    model = FineRanker(data.spec, synthetic.FINE)
    schedule = replace(synthetic.SCHEDULE, epochs=15, learning_rate=2e-2)
    assert fit(model, data, synthetic.RECIPE, schedule, "fine") > 0.7


def test_distillation_brings_the_student_nearer_to_its_teacher(synthetic, data, rankers):
    def distance(model):
        rows = data.score(model, data.valid), data.score(rankers.fine.model, data.valid)
        return float(np.mean((rows[0] - rows[1]) ** 2))

    torch.manual_seed(0)
    student = CoarseRanker(data.spec, synthetic.COARSE)
    with torch.no_grad():
        student.out.bias += 1.0
    before = distance(student)
    schedule = replace(synthetic.SCHEDULE, distil_weight=5.0)
    rows = data.rows(data.train, data.spec.history, schedule.group_rows)
    run = RankTrainer(student, data.users, data.items, rows, synthetic.RECIPE, schedule, rankers.fine.model)
    teacher = {name: t.clone() for name, t in rankers.fine.model.state_dict().items()}
    for _ in range(25):
        run.step()
    assert distance(student) < 0.5 * before
    assert all(torch.equal(t, rankers.fine.model.state_dict()[name]) for name, t in teacher.items())


def test_data_without_ratings_teaches_engage_alone(synthetic):
    data = synthetic.rank_data(synthetic.dataset(values=False))
    assert objectives_of(data.train) == ("engage",)
    trained = train_rankers(data, synthetic.RECIPE.with_objectives("engage"))
    assert trained.fine.outputs.objectives == ("engage",)
    assert np.isfinite(list(trained.valid_auc.values())).all()


@pytest.mark.parametrize("entity", ["user", "item"])
def test_data_without_features_trains(synthetic, entity):
    fields = tuple(f for f in synthetic.FIELDS if f.entity == entity)
    data = synthetic.rank_data(synthetic.dataset(fields))
    assert np.isfinite(list(train_rankers(data, synthetic.RECIPE).valid_auc.values())).all()


def test_histories_of_earlier_events_train(synthetic):
    data = synthetic.rank_data(view="earlier")
    assert np.isfinite(train_rankers(data, synthetic.RECIPE).valid_auc["fine"])


def test_enough_samples_give_the_softmax_over_all_items():
    torch.manual_seed(0)
    logits, odds = torch.randn(40), torch.rand(40)
    odds = odds / odds.sum()
    drawn = torch.multinomial(odds, 200_000, True).unsqueeze(0)
    target = torch.tensor([[3]])
    same = target.unsqueeze(2) == drawn.unsqueeze(1)
    found = sampled_softmax(logits[target], logits[drawn], same, odds[drawn], 40)
    mean_odds = torch.logsumexp(torch.cat([logits[:3], logits[4:]]), 0) - np.log(40)
    expected = functional.cross_entropy(logits[None], target[0]) + 0.05 * mean_odds**2
    assert abs(float(found - expected)) < 0.02


def test_nothing_to_learn_from_is_refused(synthetic, world, data):
    encoder, rows = synthetic.encoded(world)
    tables = object(), object()
    with pytest.raises(DataError, match="no training interactions"):
        prepare(encoder, *tables, rows.take(np.zeros(0, int)), rows, "others")
    untimed = type(rows)(rows.users, rows.items, rows.values, rows.signals, None)
    with pytest.raises(DataError, match="timestamps"):
        prepare(encoder, *tables, untimed, untimed, "earlier")


def test_an_unknown_recipe_lists_the_known_ones():
    with pytest.raises(ConfigError, match="full.*quick"):
        recipe_named("slow")


def test_validation_auc_is_that_of_the_kept_weights(data, rankers):
    logits = data.score(rankers.fine.model, data.valid)
    assert auc(data.valid.values >= 4.0, logits[:, 1]) == pytest.approx(rankers.valid_auc["fine"])
