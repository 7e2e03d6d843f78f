"""A move made in pieces is the move made in one."""

from __future__ import annotations

import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pool.engines.split_adam import SplitAdam


def weights(rows: int, width: int) -> list[torch.Tensor]:
    random = torch.Generator().manual_seed(rows)
    shapes = ((rows, width), (width,), (), (3, 2, 2))
    return [torch.randn(shape, generator=random).requires_grad_() for shape in shapes]


def give_gradients(parameters: list[torch.Tensor], step: int) -> None:
    random = torch.Generator().manual_seed(step)
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=random)


@given(st.integers(1, 40), st.integers(1, 9), st.integers(1, 64), st.sampled_from([None, True, False]))
def test_it_is_torchs_adam_bit_for_bit(rows, width, elements, foreach):
    own, theirs = weights(rows, width), weights(rows, width)
    split = SplitAdam([(own[:2], 1e-2), (own[2:], 0.0)], 0.1, elements, foreach)
    groups = [{"params": theirs[:2], "weight_decay": 1e-2}, {"params": theirs[2:]}]
    whole = torch.optim.Adam(groups, lr=0.1, foreach=foreach)
    for step in range(3):
        give_gradients(own, step)
        give_gradients(theirs, step)
        for group in whole.param_groups:
            group["lr"] = 0.1 / (step + 1)
        whole.step()
        for piece in range(split.pieces):
            split.move(piece, 0.1 / (step + 1))
        split.zero_grad()
        assert all(torch.equal(a, b) for a, b in zip(own, theirs, strict=True))


def test_a_piece_holds_no_more_than_it_may_and_all_hold_everything_once():
    parameters = weights(100, 7)
    split = SplitAdam([(parameters, 0.0)], 0.1, elements=50)
    sizes = [sum(span.view.numel() for span in split.spans(piece)) for piece in range(split.pieces)]
    assert max(sizes) <= 50
    assert sum(sizes) == sum(parameter.numel() for parameter in parameters)


def test_weights_without_a_gradient_stay():
    parameters = weights(4, 2)
    before = [parameter.detach().clone() for parameter in parameters]
    split = SplitAdam([(parameters, 0.5)], 0.1)
    split.move(0, 0.1)
    assert all(torch.equal(a, b) for a, b in zip(before, parameters, strict=True))


def test_stopped_between_two_pieces_it_goes_on_with_the_same_bits():
    def begin() -> tuple[list[torch.Tensor], SplitAdam]:
        parameters = weights(30, 3)
        return parameters, SplitAdam([(parameters, 1e-3)], 0.1, elements=20)

    def go_on(parameters: list[torch.Tensor], split: SplitAdam, moves: list[tuple[int, int]]) -> None:
        for step, piece in moves:
            give_gradients(parameters, step)
            split.move(piece, 0.1)

    whole, split = begin()
    moves = [(step, piece) for step in range(3) for piece in range(split.pieces)]
    go_on(whole, split, moves)
    first, early = begin()
    go_on(first, early, moves[:7])
    file = io.BytesIO()
    torch.save({"adam": early.state_dict(), "weights": first}, file)
    file.seek(0)
    second, late = begin()
    state = torch.load(file, weights_only=True)
    late.load_state_dict(state["adam"])
    with torch.no_grad():
        for parameter, saved in zip(second, state["weights"], strict=True):
            parameter.copy_(saved)
    go_on(second, late, moves[7:])
    assert all(torch.equal(a, b) for a, b in zip(whole, second, strict=True))


def test_a_state_of_another_cut_is_refused():
    split = SplitAdam([(weights(30, 3), 0.0)], 0.1, elements=20)
    with pytest.raises(ValueError, match="parameter groups|shorter|longer"):
        split.load_state_dict(SplitAdam([(weights(30, 3), 0.0)], 0.1).state_dict())
