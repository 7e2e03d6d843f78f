"""A micro-step cut into parts has the gradients of the whole, and can be stopped between any two of them."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
import torch

from ranking.coarse import CoarseRanker
from ranking.fine import FineRanker
from ranking.training import RankTrainer

KINDS = {"fine": FineRanker, "coarse": CoarseRanker}


def made(synthetic, data, kind: str, teacher=None, parts: bool = True, seed: int = 0, **config) -> RankTrainer:
    torch.manual_seed(seed)
    shape = replace(synthetic.FINE if kind == "fine" else synthetic.COARSE, **config)
    schedule = replace(synthetic.SCHEDULE, micro=2, distil_weight=1.0)
    rows = data.rows(data.train, data.spec.history, schedule.group_rows)
    model, tables = KINDS[kind](data.spec, shape), (data.users, data.items)
    return RankTrainer(model, *tables, rows, synthetic.RECIPE, schedule, teacher, 2_000, parts=parts)


def gradients(trainer: RankTrainer) -> dict[str, torch.Tensor]:
    while not trainer.moving:
        trainer.unit()
    return {name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("kind", "teacher"), [("fine", False), ("coarse", False), ("coarse", True)])
def test_the_parts_gradients_are_the_wholes(synthetic, data, rankers, kind, teacher):
    """Nothing is dropped inside the models, so they draw nothing; what is drawn for examples is the same."""
    taught = rankers.fine.model if teacher else None
    whole, cut = (gradients(made(synthetic, data, kind, taught, parts, dropout=0.0)) for parts in (False, True))
    assert whole.keys() == cut.keys()
    for name in whole:
        torch.testing.assert_close(cut[name], whole[name], rtol=1e-4, atol=1e-6, msg=name)


@pytest.mark.parametrize("kind", KINDS)
def test_stopped_anywhere_it_goes_on_with_the_same_bits(synthetic, data, rankers, kind):
    def begin(seed: int = 0) -> RankTrainer:
        return made(synthetic, data, kind, rankers.fine.model, seed=seed)

    whole = begin()
    while whole.step_count < 3:
        whole.unit()
    # Within the second micro-step and the move after it, at every place of the cheaper model.
    for stop in range(8, 21, 1 if kind == "coarse" else 4):
        first = begin()
        for _ in range(stop):
            first.unit()
        file = io.BytesIO()
        torch.save(first.state_dict(), file)
        file.seek(0)
        second = begin(seed=99)
        second.load_state_dict(torch.load(file, weights_only=True))
        assert second.unit_count == stop and second.kind == first.kind
        torch.rand(3)  # other users of torch's generator must not matter
        while second.step_count < 3:
            second.unit()
        expected = whole.model.state_dict()
        assert all(torch.equal(expected[name], t) for name, t in second.model.state_dict().items()), stop


def test_units_counted_are_units_done(synthetic, data, rankers):
    run, done = made(synthetic, data, "coarse", rankers.fine.model), 0
    run.total_steps = 5
    while run.step_count < run.total_steps or run.moving:
        assert run.unit_count == done
        run.unit()
        done += 1
    assert done == run.total_units
