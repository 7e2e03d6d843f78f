"""The coarse ranker: a user vector times an item vector and a small network on their product.

Light enough for hundreds of candidates: per candidate it costs one product and a tiny network. It
learns from the labels and from the fine ranker's scores (`ranking.training`).
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ranking.inputs import Fields, InputSpec, lists_to_tuples
from ranking.layers import FieldEmbeddings, SignedHistory, embedding, pools


@dataclass(frozen=True)
class CoarseConfig:
    """Shape of a coarse ranker; ``vector`` is the width of the user and item vectors."""

    objectives: tuple[str, ...] = ("like", "rating")
    dim: int = 32
    vector: int = 48
    hidden: int = 96
    cross_hidden: int = 16
    dropout: float = 0.1

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> CoarseConfig:
        return cls(**lists_to_tuples(raw))


class CoarseUser(NamedTuple):
    """state [B, R, vector + O] float32; R is 1 in serving, see `ranking.fine.UserTensors`."""

    state: Tensor


class CoarseRanker(nn.Module):
    user_parts = ("state",)

    def __init__(self, spec: InputSpec, config: CoarseConfig):
        super().__init__()
        self.spec, self.config = spec, config
        outputs = len(config.objectives)
        self.user_fields = FieldEmbeddings(spec.user_cat, spec.user_num, spec.user_multi, config.dim)
        self.item_fields = FieldEmbeddings(spec.item_cat, spec.item_num, spec.item_multi, config.dim)
        self.history = SignedHistory(spec.item_cat[0], config.dim, config.vector)
        user_width = self.user_fields.width + 3 * config.vector + 2
        # A linear path beside the network: an id's vector should reach the product undistorted.
        self.user_linear = nn.Linear(user_width, config.vector)
        self.user_mlp = _mlp(user_width, config.hidden, config.vector + outputs, config.dropout)
        self.item_linear = nn.Linear(self.item_fields.width, config.vector)
        self.item_mlp = _mlp(self.item_fields.width, config.hidden, config.vector + outputs, config.dropout)
        self.cross_in = nn.Linear(config.vector, config.cross_hidden)
        self.out = nn.Linear(config.vector + config.cross_hidden, outputs)
        self.user_bias = embedding(spec.user_cat[0], outputs, std=0.0)
        self.item_bias = embedding(spec.item_cat[0], outputs, std=0.0)

    def encode_user(self, fields: Fields, history: Tensor, signal: Tensor, mask: Tensor | None = None) -> CoarseUser:
        """Arguments as in `ranking.fine.FineRanker.encode_user`."""
        mask = (history > 0).float().unsqueeze(1) if mask is None else mask
        _, values = self.history(history, signal)
        fields = fields.by_view()
        columns = self.user_fields(fields).expand(-1, mask.shape[1], -1)
        x = torch.cat([columns, *pools(values[:, :-1], signal, mask)], -1)
        return CoarseUser(self._state(x, self.user_linear, self.user_mlp, self.user_bias(fields.cat[..., 0])))

    def encode_item(self, fields: Fields) -> Tensor:
        """Item state [..., vector + O] float32."""
        bias = self.item_bias(fields.cat[..., 0])
        return self._state(self.item_fields(fields), self.item_linear, self.item_mlp, bias)

    def cross(self, user: CoarseUser, item: Tensor) -> Tensor:
        """Logits [B, C, O] of candidates with item state [B, C, Di]; "rating" is standardised."""
        width = self.config.vector
        product = user.state[..., :width] * item[..., :width]
        hidden = functional.relu(self.cross_in(product))
        return self.out(torch.cat([product, hidden], -1)) + user.state[..., width:] + item[..., width:]

    def forward(
        self, user: Fields, history: Tensor, signal: Tensor, item: Fields, mask: Tensor | None = None
    ) -> Tensor:
        return self.cross(self.encode_user(user, history, signal, mask), self.encode_item(item))

    @torch.no_grad()
    def rescale(self, output: int, scale: float, shift: float) -> None:
        """Change the weights so that a logit is ``scale`` times what it was, plus ``shift``."""
        row = self.config.vector + output
        parts = [self.out.weight[output], self.out.bias[output]]
        for mlp, bias in ((self.user_mlp, self.user_bias), (self.item_mlp, self.item_bias)):
            last = mlp[-1]
            assert isinstance(last, nn.Linear)
            parts += [last.weight[row], last.bias[row], bias.weight[:, output]]
        for part in parts:
            part.mul_(scale)
        self.out.bias[output] += shift

    def _state(self, x: Tensor, linear: nn.Module, mlp: nn.Module, bias: Tensor) -> Tensor:
        width = self.config.vector
        deep = mlp(x)
        return torch.cat([linear(x) + deep[..., :width], deep[..., width:] + bias], -1)


def _mlp(width: int, hidden: int, out: int, dropout: float) -> nn.Sequential:
    return nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Dropout(dropout), nn.Linear(hidden, out))
