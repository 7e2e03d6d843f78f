"""A step cut into units has the gradients of the whole, and can be stopped between any two of them."""

from __future__ import annotations

import io
from dataclasses import replace

import numpy as np
import pytest
import scipy.sparse as sp
import torch

from recall import training
from recall.recipes import TowerSettings
from recall.tower_units import TowerUnits
from recall.training import TowerTrainer
from recall.training_data import spectral_vectors
from recall.two_tower import TowerShape

SMALL = TowerSettings(dim=8, hidden=16, epochs=3, batch=16, held_out=0.3, negatives=12)


def trainer(data, **changes) -> TowerTrainer:
    shape = TowerShape.of(data.encoder)
    return TowerTrainer(shape, data.users, data.items, data.rows, 12, replace(SMALL, **changes), 3, piece_elements=200)


def weights(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@pytest.mark.parametrize("sampled", [False, True])
def test_the_parts_gradients_add_up_to_the_steps(data, monkeypatch, sampled):
    """Against the loss of each part with everything in one graph; nothing is dropped, so nothing is drawn."""
    if sampled:
        monkeypatch.setattr(training, "FULL_SOFTMAX_UP_TO", 5)
    plain = {"dropout": 0.0, "item_id_dropout": 0.0}
    cut = TowerUnits(trainer(data, **plain), users=6, scored=4, items=7)
    while cut.kind != "move":
        cut.unit()
    whole = trainer(data, **plain)
    batches = [whole.examples.part(0, place, 3) for place in range(3)]
    candidates, log_odds = whole.candidates(np.concatenate([b.events[b.asked] for b in batches]))
    items = whole.model.item(whole.item_inputs(candidates))
    total = sum(len(b.users) for b in batches)
    loss = sum(whole.likelihood(b, total, whole.user_vectors(b), items, candidates, log_odds) for b in batches)
    assert isinstance(loss, torch.Tensor)
    loss.backward()
    for (name, mine), theirs in zip(cut.trainer.model.named_parameters(), whole.model.parameters(), strict=True):
        if theirs.grad is None:
            assert mine.grad is None or not mine.grad.any(), name
        else:
            assert mine.grad is not None, name
            torch.testing.assert_close(mine.grad, theirs.grad, rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("sampled", [False, True])
def test_stopped_anywhere_it_goes_on_with_the_same_bits(data, monkeypatch, sampled):
    if sampled:
        monkeypatch.setattr(training, "FULL_SOFTMAX_UP_TO", 5)
    whole = TowerUnits(trainer(data), users=6, scored=4, items=7)
    while not whole.done:
        whole.unit()
    for stop in range(1, 3 * whole.per_step, 29):
        first = TowerUnits(trainer(data), users=6, scored=4, items=7)
        for _ in range(stop):
            first.unit()
        file = io.BytesIO()
        torch.save(first.state_dict(), file)
        file.seek(0)
        second = TowerUnits(trainer(data), users=6, scored=4, items=7)
        second.load_state_dict(torch.load(file, weights_only=True))
        assert second.unit_count == stop
        torch.rand(3)  # other users of torch's generator must not matter
        while not second.done:
            second.unit()
        expected = weights(whole.trainer.model)
        assert all(torch.equal(expected[n], t) for n, t in weights(second.trainer.model).items())


def test_uncut_it_is_the_trainers_own_step(data):
    one, other = TowerUnits(trainer(data), users=None), trainer(data)
    while not one.done:
        one.unit()
    while not other.done:
        other.step()
    expected = weights(other.model)
    assert all(torch.equal(expected[name], tensor) for name, tensor in weights(one.trainer.model).items())


def test_recomputing_changes_no_weight(data):
    plain, again = trainer(data), trainer(data)
    again.recompute = True
    for _ in range(4):
        assert plain.step() == again.step()
    expected = weights(plain.model)
    assert all(torch.equal(expected[name], tensor) for name, tensor in weights(again.model).items())


def test_units_counted_are_units_done(data):
    run, done = TowerUnits(trainer(data), users=5, scored=2, items=9), 0
    while not run.done:
        assert run.unit_count == done
        run.unit()
        done += 1
    assert done == run.total_units


def test_directions_that_a_matrix_lacks_are_zero_and_the_start_is_repeatable():
    """ARPACK fills them up with noise, another each time."""
    tastes = np.random.default_rng(0).random((4, 9)) < 0.5
    rows = np.concatenate([np.zeros((16, 2)), np.repeat(tastes, 4, 0)], 1)
    assert np.linalg.matrix_rank(rows) == 4
    matrix = sp.csr_matrix(rows.astype(np.float32))
    found = [spectral_vectors(matrix, 8) for _ in range(3)]
    assert found[0] is not None
    assert np.array_equal(found[0], found[1]) and np.array_equal(found[0], found[2])
    assert np.linalg.norm(found[0], axis=0).round(4).tolist() == [1.0] * 4 + [0.0] * 4
