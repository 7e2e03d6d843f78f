"""Recomputing activations saves memory and changes no gradient."""

from __future__ import annotations

import pytest
import torch
from torch.autograd.graph import saved_tensors_hooks

from ranking.coarse import CoarseRanker
from ranking.fine import FineRanker
from ranking.pipeline import RankerFit
from ranking.training import RankTrainer


def made(synthetic, data, kind, recompute: bool) -> RankTrainer:
    torch.manual_seed(0)
    model = kind(data.spec, synthetic.FINE if kind is FineRanker else synthetic.COARSE)
    rows = data.rows(data.train, data.spec.history, synthetic.SCHEDULE.group_rows)
    return RankTrainer(model, data.users, data.items, rows, synthetic.RECIPE, synthetic.SCHEDULE, recompute=recompute)


def weights_after(trainer: RankTrainer, steps: int) -> dict[str, torch.Tensor]:
    for _ in range(steps):
        trainer.step()
    return trainer.model.state_dict()


def kept_bytes(trainer: RankTrainer) -> int:
    """What a forward pass keeps for its way back, weights apart."""
    own = {p.untyped_storage().data_ptr() for p in trainer.model.parameters()}
    storages: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            storages[storage.data_ptr()] = storage
        return tensor

    example = trainer.examples.draw(0)
    with saved_tensors_hooks(keep, lambda tensor: tensor):
        trainer.loss(example, trainer._logits(example))
    return sum(storage.nbytes() for storage in storages.values())


@pytest.mark.parametrize("kind", [FineRanker, CoarseRanker])
def test_weights_are_equal(synthetic, data, kind):
    plain, again = (weights_after(made(synthetic, data, kind, recompute), 3) for recompute in (False, True))
    assert [name for name in plain if not torch.equal(plain[name], again[name])] == []


def test_less_is_kept_for_the_way_back(synthetic, data):
    plain, again = (kept_bytes(made(synthetic, data, FineRanker, recompute)) for recompute in (False, True))
    assert again < 0.6 * plain


@pytest.mark.parametrize("stop", [17, 60])
def test_a_stopped_fit_resumes_to_the_same_weights(synthetic, data, stop, tmp_path):
    """At micro-steps, pieces of a move, and within validation."""

    def begin() -> RankerFit:
        torch.manual_seed(0)
        model = FineRanker(data.spec, synthetic.FINE)
        return RankerFit(
            model, data, synthetic.RECIPE, synthetic.SCHEDULE, valid_groups=2, piece_elements=500, recompute=True
        )

    whole = begin()
    while not whole.done:
        whole.unit()
    first = begin()
    for _ in range(stop):
        first.unit()
    torch.save(first.state_dict(), tmp_path / "state.pt")
    second = begin()
    second.load_state_dict(torch.load(tmp_path / "state.pt", weights_only=True))
    assert second.unit_count == stop
    while not second.done:
        second.unit()
    assert second.finish() == whole.finish()
    expected = whole.trainer.model.state_dict()
    assert all(torch.equal(expected[n], t) for n, t in second.trainer.model.state_dict().items())
