"""The two-tower's training cut into units of a few milliseconds, between any two of which it can stop.

The vectors of the scored items cost most of a step and are the same for all of its users, so a step is

    examples   draw the events that each part of the users is asked for
    items      vectors of the candidates, a part of them at a time, without a graph
    users      loss of a part of the users; its gradient with respect to the items is kept
    back       the items' forward again, with a graph, and the kept gradient through it
    move       a piece of the optimiser's move

No unit leaves a graph behind, so what lies between two units is arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from recall.training import TowerTrainer
from recall.training_data import TowerBatch


class TowerUnits:
    """A trainer's steps in units; the result depends on the cut, as float sums do, and on nothing else.

    Args:
        users: of a part; None for whole steps as units, which gives `TowerTrainer.step`'s bits.
        items: of a part.
    """

    def __init__(self, trainer: TowerTrainer, users: int | None, items: int = 1024):
        self.trainer, self._whole = trainer, users is None
        self._users = 1 if users is None else -(-trainer.settings.batch // users)
        self._items = -(-trainer.most_candidates // items)
        self._place = 0
        self._begin()

    @property
    def per_step(self) -> int:
        """Units in a step."""
        return 1 if self._whole else 2 * (self._users + self._items) + self.trainer.optimizer.pieces

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
            ("back", self._items, self._backward_items),
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

    def _begin(self) -> None:
        self._parts: list[TowerBatch] = []
        self._candidates, self._log_odds = np.zeros(0, np.int64), torch.zeros(0)
        self._vectors, self._vector_grads = torch.zeros(0), torch.zeros(0)
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
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self._seed(1, part))
            return self.trainer.model.item(self.trainer.item_inputs(self._candidates[self._rows(part)]))

    def _compute_users(self, part: int) -> None:
        trainer, batch = self.trainer, self._parts[part]
        if not len(batch.users):
            return
        vectors = self._vectors.detach().requires_grad_()
        vectors.grad = self._vector_grads
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(self._seed(2, part))
            users = trainer.user_vectors(batch)
        total = sum(len(part.users) for part in self._parts)
        loss = trainer.likelihood(batch, total, users, vectors, self._candidates, self._log_odds)
        loss.backward()
        self._vector_grads = vectors.grad
        self._loss += float(loss.detach())

    def _backward_items(self, part: int) -> None:
        self._items_of(part).backward(self._vector_grads[self._rows(part)])

    def _move(self, piece: int) -> None:
        self.trainer.optimizer.move(piece, self.trainer.rate())

    def _seed(self, of: int, part: int) -> int:
        """63 bits that differ for every part of every step."""
        words = np.random.SeedSequence((self.trainer.seed, self.trainer.step_count, of, part)).generate_state(2)
        return int(words[0]) << 31 | int(words[1]) >> 1
