"""A ranker's micro-step in parts of a few milliseconds, between any two of which it can stop.

    draw        the rows, the items drawn against them, and the fields of both
    teacher     what the teacher says about them, where there is one
    user, item  states of both, without a graph
    cross       logits from these states, without a graph
    loss        of these logits; its gradient with respect to them is kept
    cross back, user back, item back
                each forward again, with a graph, and the kept gradient through it, which leaves the next ones

No part leaves a graph behind, so what lies between two parts is arrays. The second forward is the price, as in
Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from pool.engines.generators import seed_of, seeded
from ranking.coarse import CoarseUser
from ranking.examples import Example, RankExamples
from ranking.fine import FineRanker, UserTensors
from ranking.scoring import Model

Loss = Callable[[Example, Tensor, Tensor | None], Tensor]
"""Of an example, from its logits [G, C, O] and the teacher's; scalar, to be added to those of other micro-steps."""


class MicroStep:
    """One micro-step after the other; all randomness follows from the seed, the step's number and the part.

    Args:
        teach: the teacher's logits of an example; None without a teacher.
    """

    def __init__(
        self,
        model: Model,
        examples: RankExamples,
        loss: Loss,
        teach: Callable[[Example], Tensor] | None,
        seed: int,
    ):
        self._model, self._examples, self._loss, self._teach, self._seed = model, examples, loss, teach, seed
        parts: list[tuple[str, Callable[[], None]]] = [
            ("draw", self._draw),
            *([("teacher", self._ask_teacher)] if teach is not None else []),
            ("user", self._encode_user),
            ("item", self._encode_item),
            ("cross", self._cross),
            ("loss", self._differentiate),
            ("cross back", self._back_through_cross),
            ("user back", self._back_through_user),
            ("item back", self._back_through_item),
        ]
        self._parts = parts
        self.place, self._step = 0, 0
        self._example: Example | None = None
        self._kept: dict[str, Any] = {}

    @property
    def parts(self) -> int:
        return len(self._parts)

    @property
    def kind(self) -> str:
        """Of the next part."""
        return self._parts[self.place][0]

    def unit(self, step: int) -> float | None:
        """Do the next part of a step; returns the step's loss after its last part."""
        self._step = step
        self._parts[self.place][1]()
        self.place += 1
        if self.place < self.parts:
            return None
        loss = self._kept["loss"]
        self.place, self._example, self._kept = 0, None, {}
        return loss

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs but the step's number; loads with ``torch.load(weights_only=True)``."""
        return {"place": self.place, "kept": self._kept}

    def load_state_dict(self, state: dict[str, Any], step: int) -> None:
        self.place, self._kept, self._step = state["place"], dict(state["kept"]), step
        self._example = None
        if self.place:
            self._draw()

    def _draw(self) -> None:
        # As an uncut micro-step draws, so both see the same examples.
        with seeded((self._seed << 32) + self._step):
            self._example = self._examples.draw(self._step)

    def _ask_teacher(self) -> None:
        assert self._example is not None and self._teach is not None
        self._kept["wanted"] = self._teach(self._example)

    @torch.no_grad()
    def _encode_user(self) -> None:
        self._kept["user"] = list(self._user())

    @torch.no_grad()
    def _encode_item(self) -> None:
        self._kept["item"] = self._item()

    @torch.no_grad()
    def _cross(self) -> None:
        self._kept["logits"] = self._logits(self._kept["user"], self._kept["item"])

    def _differentiate(self) -> None:
        assert self._example is not None
        logits = self._kept.pop("logits").requires_grad_()
        loss = self._loss(self._example, logits, self._kept.pop("wanted", None))
        loss.backward()
        self._kept["loss"], self._kept["logit_grad"] = float(loss.detach()), logits.grad

    def _back_through_cross(self) -> None:
        kept, names = self._kept, self._model.user_parts
        # Nothing is learnt through a mask.
        user = [t.requires_grad_(name != "mask") for name, t in zip(names, kept.pop("user"), strict=True)]
        item = kept.pop("item").requires_grad_()
        self._logits(user, item).backward(kept.pop("logit_grad"))
        kept["user_grads"], kept["item_grad"] = [t.grad for t in user], item.grad

    def _back_through_user(self) -> None:
        grads = self._kept.pop("user_grads")
        pairs = [(t, grad) for t, grad in zip(self._user(), grads, strict=True) if grad is not None]
        torch.autograd.backward([t for t, _ in pairs], [grad for _, grad in pairs])

    def _back_through_item(self) -> None:
        self._item().backward(self._kept.pop("item_grad"))

    def _user(self) -> Any:
        shown = self._example
        assert shown is not None
        with seeded(seed_of(self._seed, self._step, 1)):
            return self._model.encode_user(shown.user, shown.history, shown.signal, shown.views.mask)

    def _item(self) -> Tensor:
        assert self._example is not None
        with seeded(seed_of(self._seed, self._step, 2)):
            return self._model.encode_item(self._example.item)

    def _logits(self, user: list[Tensor], item: Tensor) -> Tensor:
        model = self._model
        encoded = UserTensors(*user) if isinstance(model, FineRanker) else CoarseUser(*user)
        with seeded(seed_of(self._seed, self._step, 3)):
            return model.cross(encoded, item)  # type: ignore[arg-type]
