"""Adam whose move over all weights is made in pieces, so that best-effort training can give way between them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

PIECE_ELEMENTS = 131_072
"""Weights in a piece: about half a millisecond of Adam on one slow core, and with decay and an average three."""


class Span(NamedTuple):
    """Rows of one parameter, and a view of them that shares the parameter's memory."""

    parameter: Tensor
    rows: slice
    view: Tensor
    decay: float


class SplitAdam:
    """The move of `torch.optim.Adam`, bit for bit, but one piece at a time.

    Adam works element by element: it makes no difference which elements are moved in one call. Large
    tables are cut by rows.

    Args:
        groups: parameters and the weight decay of each group.
        elements: most weights in a piece; a single row is never cut.
        foreach: as for `torch.optim.Adam`.
    """

    def __init__(
        self,
        groups: Sequence[tuple[Sequence[Tensor], float]],
        learning_rate: float,
        elements: int = PIECE_ELEMENTS,
        foreach: bool | None = None,
    ):
        self._parameters = [parameter for parameters, _ in groups for parameter in parameters]
        spans = [s for parameters, decay in groups for p in parameters for s in _spans(p, decay, elements)]
        self._pieces = list(_packed(spans, elements))
        self._adams = [
            torch.optim.Adam(
                [{"params": [span.view], "weight_decay": span.decay} for span in piece],
                lr=learning_rate,
                foreach=foreach,
            )
            for piece in self._pieces
        ]

    @property
    def pieces(self) -> int:
        return len(self._pieces)

    def spans(self, piece: int) -> list[Span]:
        """What a piece moves; together the pieces cover every parameter once."""
        return self._pieces[piece]

    def move(self, piece: int, rate: float) -> None:
        """Move one piece by the parameters' gradients; those without one stay."""
        adam = self._adams[piece]
        for span, group in zip(self._pieces[piece], adam.param_groups, strict=True):
            span.view.grad = _rows(span.parameter.grad, span.rows)
            group["lr"] = rate
        adam.step()
        for span in self._pieces[piece]:
            span.view.grad = None

    def zero_grad(self) -> None:
        for parameter in self._parameters:
            parameter.grad = None

    def state_dict(self) -> dict[str, Any]:
        return {"pieces": [adam.state_dict() for adam in self._adams]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Raises ValueError when the state is of another cut."""
        for adam, saved in zip(self._adams, state["pieces"], strict=True):
            adam.load_state_dict(saved)


def _rows(grad: Tensor | None, rows: slice) -> Tensor | None:
    return grad if grad is None or rows == slice(None) else grad[rows]


def _spans(parameter: Tensor, decay: float, elements: int) -> Iterator[Span]:
    values = parameter.detach()
    if values.numel() <= elements:
        yield Span(parameter, slice(None), values, decay)
        return
    rows = max(1, elements // max(1, values[0].numel()))
    for start in range(0, len(values), rows):
        chosen = slice(start, start + rows)
        yield Span(parameter, chosen, values[chosen], decay)


def _packed(spans: Sequence[Span], elements: int) -> Iterator[list[Span]]:
    """Spans in order, as many together as fit."""
    piece, size = [], 0
    for span in spans:
        if piece and size + span.view.numel() > elements:
            yield piece
            piece, size = [], 0
        piece.append(span)
        size += span.view.numel()
    if piece:
        yield piece
