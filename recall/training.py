"""Training the two-tower in steps that can be stopped and resumed exactly."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import scipy.sparse as sp
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from features.datasets import IndexedInteractions
from features.encoding import FIRST_KNOWN, PADDING, UNKNOWN, ItemBatch, UserBatch
from pool.engines.generators import seeded
from pool.engines.split_adam import PIECE_ELEMENTS, SplitAdam
from recall.recipes import TowerSettings
from recall.training_data import TowerBatch, TowerExamples, interaction_matrix, spectral_vectors
from recall.two_tower import Inputs, TowerShape, TwoTower

FULL_SOFTMAX_UP_TO = 20_000
"""Items up to which a step scores the whole catalogue; above it, a sample."""
HIDDEN_LOGIT = -1e9


class TowerTrainer:
    """Softmax over items, one `step` a batch of users.

    Weights, optimiser and the count of steps are the whole state: batches and dropout follow from
    the seed and the step's number.

    Args:
        users: profiles by user index, [U + 2] rows; histories in it are ignored.
        items: the catalogue by item index, [I + 2] rows.
        rows: training interactions.
        history_length: events a user row carries in serving.
        spectral: start at `start_spectral`'s vectors; without, the caller does that or loads weights.
        piece_elements: weights that one piece of a move covers; it changes no result.
        recompute: keep less of a step's forward pass and compute it again on the way back; it changes no result.
            A step in units (`recall.tower_units`) does so with the items in any case.
    """

    def __init__(
        self,
        shape: TowerShape,
        users: UserBatch,
        items: ItemBatch,
        rows: IndexedInteractions,
        history_length: int,
        settings: TowerSettings,
        seed: int = 0,
        spectral: bool = True,
        piece_elements: int = PIECE_ELEMENTS,
        recompute: bool = False,
    ):
        self.settings, self.seed, self._users, self._rows = settings, seed, users, rows
        self.recompute = recompute
        self._items = {name: torch.from_numpy(array) for name, array in items.inputs().items()}
        self.examples = TowerExamples(rows, history_length, settings, seed)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model = TwoTower(shape, settings.dim, settings.hidden, settings.dropout)
        self._proposal = _proposal(_popularity(interaction_matrix(rows, shape.items)))
        if spectral:
            self.start_spectral()
        self.optimizer = SplitAdam([(list(self.model.parameters()), 0.0)], settings.learning_rate, piece_elements)
        self.step_count, self.recent_loss = 0, float("nan")
        self.total_steps = self.examples.steps_per_epoch * settings.epochs

    def start_spectral(self) -> None:
        """Begin at singular vectors of the interactions; one call of a sparse solver, so it may take seconds."""
        matrix = interaction_matrix(self._rows, self.model.shape.items)
        vectors = spectral_vectors(matrix, self.settings.dim - 1)
        if vectors is not None:
            self.model.start_from(torch.from_numpy(vectors), torch.from_numpy(_popularity(matrix)))

    @property
    def done(self) -> bool:
        return self.step_count >= self.total_steps

    def step(self) -> float:
        """One optimiser step; returns its loss."""
        batch = self.examples.batch(self.step_count)
        self.model.train()
        with seeded((self.seed << 32) + self.step_count):
            loss = self.loss(batch)
        self.optimizer.zero_grad()
        loss.backward()
        for piece in range(self.optimizer.pieces):
            self.optimizer.move(piece, self.rate())
        self.step_count += 1
        self.recent_loss = float(loss.detach())
        return self.recent_loss

    def loss(self, batch: TowerBatch) -> Tensor:
        """Negative log-likelihood of the asked items; scalar.

        A user's sum is divided by the root of its length, between counting users and counting events.
        Items the tower has seen leave the softmax, as they leave the answer in serving.
        """
        candidates, log_odds = self.candidates(batch.events[batch.asked])
        users = self._forward(self.user_vectors, batch)
        items = self._forward(self.model.item, self.item_inputs(candidates))
        return self.likelihood(batch, len(batch.users), users, items, candidates, log_odds)

    def _forward(self, function: Callable[..., Tensor], *args: Any) -> Tensor:
        found = checkpoint(function, *args, use_reentrant=False) if self.recompute else function(*args)
        assert isinstance(found, Tensor)
        return found

    def likelihood(
        self, batch: TowerBatch, total: int, users: Tensor, items: Tensor, candidates: np.ndarray, log_odds: Tensor
    ) -> Tensor:
        """`loss` of the vectors of a batch's users [B, D] and of candidate items [C, D]; scalar.

        Args:
            total: users of the step that the batch is part of; the losses of its parts add up to the step's.
        """
        column = np.zeros(len(self._proposal), np.int64)
        column[candidates] = np.arange(len(candidates))
        logits = users @ items.T - log_odds
        logits = logits.masked_fill(_seen(batch, candidates, column, len(self._proposal)), HIDDEN_LOGIT)
        rows, places = np.nonzero(batch.asked)
        asked = torch.from_numpy(column[batch.events[rows, places]])
        likelihood = torch.log_softmax(logits, 1)[torch.from_numpy(rows), asked]
        weights = batch.asked.sum(1, keepdims=True).clip(1) ** -0.5 / total
        return -(likelihood * torch.from_numpy(weights[rows, 0].astype(np.float32))).sum()

    def item_vectors(self) -> np.ndarray:
        """Vectors of the whole catalogue, [I + 2, D] float32; the padding row is zero.

        Items without a training row take the id of the bucket for unknown ones, whose vector was
        trained, instead of their own, which was not.
        """
        self.model.eval()
        inputs = dict(self._items)
        ids = inputs["item_cat"][:, 0].numpy()
        fresh = np.where(self._proposal[ids] > 0, ids, UNKNOWN)
        inputs["item_cat"] = torch.cat([torch.from_numpy(fresh)[:, None].int(), inputs["item_cat"][:, 1:]], 1)
        with torch.no_grad():
            vectors = self.model.item(inputs).numpy().copy()
        vectors[PADDING] = 0.0
        return vectors

    def state_dict(self) -> dict[str, Any]:
        """Everything a resumed run needs; loads with ``torch.load(weights_only=True)``."""
        model, optimizer = self.model.state_dict(), self.optimizer.state_dict()
        return {"model": model, "optimizer": optimizer, "step_count": self.step_count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.step_count = state["step_count"]

    def rate(self) -> float:
        """Cosine decay to a hundredth of the learning rate."""
        turned = np.pi * self.step_count / max(1, self.total_steps)
        return self.settings.learning_rate * (0.01 + 0.99 * 0.5 * (1 + float(np.cos(turned))))

    def user_vectors(self, batch: TowerBatch) -> Tensor:
        """[B, D] float32."""
        users = self._users.take(batch.users).with_history(batch.history, batch.signal)
        return self.model.user({name: torch.from_numpy(array) for name, array in users.inputs().items()})

    def item_inputs(self, candidates: np.ndarray) -> Inputs:
        """Of the candidates; some ids fall to the unknown bucket, which so learns to stand for new items."""
        inputs = {name: tensor[torch.from_numpy(candidates)] for name, tensor in self._items.items()}
        cat = inputs["item_cat"].clone()
        dropped = torch.rand(len(cat)) < self.settings.item_id_dropout
        cat[:, 0] = torch.where(dropped, UNKNOWN, cat[:, 0])
        return {**inputs, "item_cat": cat}

    @property
    def most_candidates(self) -> int:
        """About how many items a step scores at most."""
        known = len(self._proposal) - FIRST_KNOWN
        return known if known <= FULL_SOFTMAX_UP_TO else min(known, 2 * self.settings.negatives)

    def candidates(self, asked: np.ndarray) -> tuple[np.ndarray, Tensor]:
        """Item indices [C] to score and their log inclusion odds [C], zero when the catalogue is whole.

        Args:
            asked: items that the step's users must find; they are among the candidates.

        Source of the correction: Bengio and Senecal 2008 (subtract the log of the proposal); the
        chance that n draws include an item is 1 - (1 - q)^n.
        """
        if len(self._proposal) <= FULL_SOFTMAX_UP_TO + FIRST_KNOWN:
            every = np.arange(FIRST_KNOWN, len(self._proposal))
            return every, torch.zeros(len(every))
        rng = np.random.default_rng((self.seed, self.step_count, 3))
        drawn = np.searchsorted(np.cumsum(self._proposal), rng.random(self.settings.negatives), side="right")
        chosen = np.union1d(drawn.clip(FIRST_KNOWN, len(self._proposal) - 1), asked)
        included = -np.expm1(self.settings.negatives * np.log1p(-self._proposal[chosen].clip(1e-12, 1 - 1e-7)))
        return chosen, torch.from_numpy(np.log(included).astype(np.float32))


def _popularity(matrix: sp.csr_matrix) -> np.ndarray:
    """Users that met each item, [I + 2] float32."""
    return np.asarray(matrix.sum(0)).ravel().astype(np.float32)


def _proposal(popularity: np.ndarray) -> np.ndarray:
    """[I + 2] sampling odds by popularity to the power 0.75, as in word2vec; never-met items are not drawn."""
    weights = popularity.astype(np.float64) ** 0.75 * (popularity > 0)
    return weights / max(weights.sum(), 1e-12)


def _seen(batch: TowerBatch, candidates: np.ndarray, column: np.ndarray, item_rows: int) -> Tensor:
    """[B, C] bool: candidates in the history the tower reads."""
    rows, places = np.nonzero(batch.history)
    items = batch.history[rows, places]
    scored = np.zeros(item_rows, bool)
    scored[candidates] = True
    kept = scored[items]
    mask = torch.zeros(len(batch.users), len(candidates), dtype=torch.bool)
    mask[torch.from_numpy(rows[kept]), torch.from_numpy(column[items[kept]])] = True
    return mask
