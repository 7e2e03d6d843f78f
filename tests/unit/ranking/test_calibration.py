"""What a ranker says of likes is their probability on rows it has not trained on, however sure training left it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from features.metrics import log_loss
from ranking import calibration
from ranking.calibration import LEAST_ROWS, Scaling, platt
from ranking.pipeline import train_rankers

ROWS = 20_000


def told(scale: float, shift: float, rows: int = ROWS) -> tuple[np.ndarray, np.ndarray]:
    """Likes, and logits that say of them what they are once scaled and shifted."""
    rng = np.random.default_rng(0)
    odds = rng.normal(0, 1.5, rows)
    return rng.random(rows) < 1 / (1 + np.exp(-odds)), ((odds - shift) / scale).astype(np.float32)


@pytest.mark.parametrize(("scale", "shift"), [(0.4, -0.7), (1.0, 0.0), (2.5, 1.0)])
def test_logits_that_are_too_sure_or_not_sure_enough_are_brought_back(scale, shift):
    found = platt(*told(scale, shift))
    assert found == pytest.approx((scale, shift), abs=0.08 * scale + 0.03)


def test_few_rows_and_rows_of_one_kind_change_nothing():
    labels, logits = told(0.4, -0.7)
    assert platt(labels[: LEAST_ROWS - 1], logits[: LEAST_ROWS - 1]) == Scaling()
    assert platt(np.ones(ROWS, bool), logits) == Scaling()


def test_an_order_is_never_reversed():
    labels, logits = told(0.4, -0.7)
    assert platt(labels, -logits) == Scaling()


def test_two_kinds_that_do_not_overlap_stay_finite():
    labels = np.arange(LEAST_ROWS) % 2 == 0
    scale, shift = platt(labels, np.where(labels, 1.0, -1.0))
    assert 1 < scale < 100
    assert abs(shift) < 1


def test_trained_rankers_are_scaled_to_their_validation_rows(synthetic, data, monkeypatch):
    schedules = {name: replace(getattr(synthetic.RECIPE, name), epochs=8) for name in ("fine", "coarse")}
    recipe, labels = replace(synthetic.RECIPE, **schedules), data.valid.values >= 4.0

    def logits() -> list[np.ndarray]:
        trained = train_rankers(data, recipe)
        return [data.score(ranker.model, data.valid) for ranker in (trained.fine, trained.coarse)]

    few = logits()
    monkeypatch.setattr(calibration, "LEAST_ROWS", 10)
    enough = logits()
    # The coarse one also learns from the fine one's logits, and so becomes another.
    scale, shift = platt(labels, few[0][:, 1])
    assert enough[0][:, 1] == pytest.approx(scale * few[0][:, 1] + shift, abs=1e-4)
    assert np.array_equal(enough[0][:, [0, 2]], few[0][:, [0, 2]])
    for before, after in zip(few, enough, strict=True):
        assert platt(labels, after[:, 1]) == pytest.approx((1, 0), abs=1e-2)
        assert loss(labels, after) < loss(labels, before)


def loss(labels: np.ndarray, logits: np.ndarray) -> float:
    """Of the probabilities of likes."""
    return log_loss(labels, 1 / (1 + np.exp(-logits[:, 1])))


@pytest.mark.parametrize("name", ["fine", "coarse"])
def test_rescaling_changes_one_output(data, rankers, name):
    trained = getattr(rankers, name).model
    model = type(trained)(trained.spec, trained.config)
    model.load_state_dict(trained.state_dict())
    before = data.score(model, data.valid)
    model.rescale(1, 0.3, -2.0)
    after = data.score(model, data.valid)
    assert after[:, 1] == pytest.approx(0.3 * before[:, 1] - 2.0, abs=1e-5)
    assert np.array_equal(after[:, [0, 2]], before[:, [0, 2]])
    assert not any(weights.grad_fn for weights in model.parameters())
    assert torch.is_grad_enabled()
