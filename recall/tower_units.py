"""The two-tower's training cut into units of a few milliseconds, between any two of which it can stop.

The vectors of the scored items cost most of a step and are the same for all of its users, so a step is

    examples      draw the events that each part of the users is asked for
    items, users  vectors of a part of the candidates, or of the users, without a graph
    score         loss of some users; its gradients with respect to users and items are kept
    users back, items back
                  each part's forward again, with a graph, and the kept gradient through it
    move          a piece of the optimiser's move

No unit leaves a graph behind, so what lies between two units is arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pool.engines.generators import seed_of, seeded
from recall.training import TowerTrainer
from recall.training_data import TowerBatch


class TowerUnits:
    """A trainer's steps in units; the result depends on the cut, as float sums do, and on nothing else.

    Args:
        users: of a part; None for whole steps as units, which gives `TowerTrainer.step`'s bits.
        scored: users of a part that are scored at once.
        items: of a part.
    """

    def __init__(self, trainer: TowerTrainer, users: int | None, scored: int = 8, items: int = 512):
        self.trainer, self._whole = trainer, users is None
        self._users = 1 if users is None else -(-trainer.settings.batch // users)
        self._scores = -(-(users or 1) // scored)
        self._items = -(-trainer.most_candidates // items)
        self._place = 0
        self._begin()

    @property
    def per_step(self) -> int:
        """Units in a step."""
        of_users = self._users * (3 + self._scores)
        return 1 if self._whole else of_users + 2 * self._items + self.trainer.optimizer.pieces

    @property
    def total_units(self) -> int:
        return self.trainer.total_steps * self.per_step

    @property
    def unit_count(self) -> int:
        return self.trainer.step_count * self.per_step + self._place

    @property
    def done(self) -> bool:
        return self.trainer.done

    def unit(self) -> None:
        if self._whole:
            self.trainer.step()
            return
        if not self.trainer.model.training:  # it walks through all modules
            self.trainer.model.train()
        _, work, place = self._at()
        work(place)
        self._place += 1
        if self._place == self.per_step:
            self._end()

    @property
    def kind(self) -> str:
        """Of the next unit."""
        return "step" if self._whole else self._at()[0]

    def _at(self) -> tuple[str, Callable[[int], None], int]:
        """Kind of the next unit, what does it, and its place among those of its kind."""
        place = self._place
        for kind, count, work in (
            ("examples", self._users, self._draw_examples),
            ("items", self._items, self._compute_items),
            ("users", self._users, self._compute_users),
            ("score", self._users * self._scores, self._score),
            ("users back", self._users, self._backward_users),
            ("items back", self._items, self._backward_items),
            ("move", self.trainer.optimizer.pieces, self._move),
        ):
            if place < count:
                return kind, work, place
            place -= count
        raise AssertionError("past the last unit of a step")

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs; loads with ``torch.load(weights_only=True)``."""
        grads = {name: p.grad for name, p in self.trainer.model.named_parameters() if p.grad is not None}
        return {
            "trainer": self.trainer.state_dict(),
            "grads": grads,
            "place": self._place,
            "vectors": self._vectors,
            "vector_grads": self._vector_grads,
            "user_vectors": self._user_vectors,
            "user_grads": self._user_grads,
            "loss": self._loss,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.trainer.load_state_dict(state["trainer"])
        for name, p in self.trainer.model.named_parameters():
            p.grad = state["grads"][name].clone() if name in state["grads"] else None
        self._begin()
        self._place, self._loss = state["place"], state["loss"]
        for part in range(min(self._place, self._users)):
            self._draw_examples(part)
        if self._place > self._users:
            self._choose_candidates()
        self._vectors, self._vector_grads = state["vectors"].clone(), state["vector_grads"].clone()
        self._user_vectors, self._user_grads = ([t.clone() for t in state[f"user_{of}"]] for of in ("vectors", "grads"))

    def _begin(self) -> None:
        self._parts: list[TowerBatch] = []
        self._candidates, self._log_odds = np.zeros(0, np.int64), torch.zeros(0)
        self._vectors, self._vector_grads = torch.zeros(0), torch.zeros(0)
        self._user_vectors: list[Tensor] = []
        self._user_grads: list[Tensor] = []
        self._loss = 0.0

    def _end(self) -> None:
        self.trainer.recent_loss = self._loss
        self.trainer.step_count += 1
        self.trainer.optimizer.zero_grad()
        self._place = 0
        self._begin()

    def _draw_examples(self, part: int) -> None:
        trainer = self.trainer
        self._parts.append(trainer.examples.part(trainer.step_count, part, self._users))

    def _choose_candidates(self) -> None:
        asked = np.concatenate([part.events[part.asked] for part in self._parts])
        self._candidates, self._log_odds = self.trainer.candidates(asked)
        self._vectors = torch.zeros(len(self._candidates), self.trainer.settings.dim)
        self._vector_grads = torch.zeros_like(self._vectors)

    def _rows(self, part: int) -> slice:
        """Candidates of a part; a step's may be more or fewer than expected."""
        size = len(self._candidates)
        return slice(size * part // self._items, size * (part + 1) // self._items)

    def _compute_items(self, part: int) -> None:
        if part == 0:
            self._choose_candidates()
        with torch.no_grad():
            self._vectors[self._rows(part)] = self._items_of(part)

    def _items_of(self, part: int) -> Tensor:
        """Vectors of a part of the candidates; each call of a step loses the same ids."""
        trainer = self.trainer
        with seeded(seed_of(trainer.seed, trainer.step_count, 1, part)):
            return trainer.model.item(trainer.item_inputs(self._candidates[self._rows(part)]))

    @torch.no_grad()
    def _compute_users(self, part: int) -> None:
        self._user_vectors.append(self._users_of(part))
        self._user_grads.append(torch.zeros_like(self._user_vectors[part]))

    def _users_of(self, part: int) -> Tensor:
        """Vectors of a part of the users; each call of a step drops the same."""
        trainer = self.trainer
        with seeded(seed_of(trainer.seed, trainer.step_count, 2, part)):
            return trainer.user_vectors(self._parts[part])

    def _score(self, place: int) -> None:
        part, at = divmod(place, self._scores)
        batch = self._parts[part]
        rows = slice(len(batch.users) * at // self._scores, len(batch.users) * (at + 1) // self._scores)
        batch = batch.take(rows)
        if not len(batch.users):
            return
        users = self._user_vectors[part][rows].detach().requires_grad_()
        items = self._vectors.detach().requires_grad_()
        users.grad, items.grad = self._user_grads[part][rows], self._vector_grads
        total = sum(len(part.users) for part in self._parts)
        loss = self.trainer.likelihood(batch, total, users, items, self._candidates, self._log_odds)
        loss.backward()
        self._user_grads[part][rows], self._vector_grads = users.grad, items.grad
        self._loss += float(loss.detach())

    def _backward_users(self, part: int) -> None:
        if len(self._parts[part].users):
            self._users_of(part).backward(self._user_grads[part])

    def _backward_items(self, part: int) -> None:
        self._items_of(part).backward(self._vector_grads[self._rows(part)])

    def _move(self, piece: int) -> None:
        self.trainer.optimizer.move(piece, self.trainer.rate())
