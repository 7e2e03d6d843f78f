"""The fine ranker: DCNv2 over fields and target attention over signed history, split for serving.

The work is cut in three, so that a request pays for its user once and for its items never:
`FineRanker.encode_user` (per request), `FineRanker.encode_item` (per release) and
`FineRanker.cross` (per candidate). The first linear maps of the cross and deep parts are applied to
the user's and the item's columns ahead of time and added up in `cross`; the result is that of the
unsplit model.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from ranking.inputs import Fields, InputSpec, lists_to_tuples
from ranking.layers import FieldEmbeddings, LowRankCross, SignedHistory, attend, embedding, pools


@dataclass(frozen=True)
class FineConfig:
    """Shape of a fine ranker; ``attention`` is the width over all heads."""

    objectives: tuple[str, ...] = ("like", "rating")
    dim: int = 16
    attention: int = 32
    heads: int = 4
    rank: int = 32
    cross_layers: int = 2
    product: int = 32
    hidden: tuple[int, int] = (128, 64)
    dropout: float = 0.2

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, raw: dict[str, Any]) -> FineConfig:
        return cls(**lists_to_tuples(raw))


class UserTensors(NamedTuple):
    """state [B, R, Du], history [B, H, 2 * attention] (keys then values), mask [B, R, H] float32.

    R is 1 in serving. In training it may be the number of candidates, each with its own view of a
    shared history and, where the data has context, with a context of its own.
    """

    state: Tensor
    history: Tensor
    mask: Tensor


class FineRanker(nn.Module):
    user_parts = ("state", "history", "mask")

    def __init__(self, spec: InputSpec, config: FineConfig):
        super().__init__()
        self.spec, self.config = spec, config
        d, outputs = config.attention, len(config.objectives)
        self.user_fields = FieldEmbeddings(spec.user_cat, spec.user_num, spec.user_multi, config.dim)
        self.item_fields = FieldEmbeddings(spec.item_cat, spec.item_num, spec.item_multi, config.dim)
        self.history = SignedHistory(spec.item_cat[0], config.dim, d)
        self.query = nn.Linear(self.item_fields.width, d)
        self.user_width = self.user_fields.width + 3 * d + 2
        self.width = self.user_width + self.item_fields.width + d
        self.crosses = nn.ModuleList(LowRankCross(self.width, config.rank) for _ in range(config.cross_layers))
        self.user_factors = nn.Linear(self.user_width, config.product, bias=False)
        self.item_factors = nn.Linear(self.item_fields.width, config.product)
        self.deep_in = nn.Linear(self.width, config.hidden[0])
        self.deep_mid = nn.Linear(config.hidden[0] + config.product, config.hidden[1])
        self.out = nn.Linear(self.width + config.product + config.hidden[1], outputs)
        self.user_bias = embedding(spec.user_cat[0], outputs, std=0.0)
        self.item_bias = embedding(spec.item_cat[0], outputs, std=0.0)
        self.drop = nn.Dropout(config.dropout)

    def encode_user(self, fields: Fields, history: Tensor, signal: Tensor, mask: Tensor | None = None) -> UserTensors:
        """The part that depends on the user alone.

        Args:
            fields: of B users, or of [B, R] views when their contexts differ.
            history, signal: [B, H] int64.
            mask: [B, R, H] float32, events each view may use; None: all that are not padding.
        """
        mask = (history > 0).float().unsqueeze(1) if mask is None else mask
        keys, values = self.history(history, signal)
        views = mask.shape[1]
        fields = fields.by_view()
        profile = self.user_fields(fields)
        events = torch.cat(pools(values[:, :-1], signal, mask), -1)
        # Views mostly share one profile, so its maps are taken apart from the events', once for all of them.
        maps = [
            a + b for a, b in zip(self._user_maps(profile, 0), self._user_maps(events, profile.shape[-1]), strict=True)
        ]
        bias = self.user_bias(fields.cat[..., 0]).expand(-1, views, -1)
        state = torch.cat([profile.expand(-1, views, -1), events, *maps, bias], -1)
        return UserTensors(state, torch.cat([keys, values], -1), functional.pad(mask, (0, 1), value=1.0))

    def encode_item(self, fields: Fields) -> Tensor:
        """Item state [..., Di] float32."""
        x = self.item_fields(fields)
        maps = self._first_maps(x, self.user_width)
        return torch.cat([x, *maps, self.item_factors(x), self.query(x), self.item_bias(fields.cat[..., 0])], -1)

    def cross(self, user: UserTensors, item: Tensor) -> Tensor:
        """Logits [B, C, O] of candidates with item state [B, C, Di]; "rating" is standardised."""
        c, d = self.config, self.config.attention
        cuts = [self.item_fields.width, c.rank, c.hidden[0], c.product, d, len(c.objectives)]
        xi, low_i, deep_i, factors_i, query, bias_i = item.split(cuts, -1)
        cuts[0] = self.user_width
        xu, low_u, deep_u, factors_u, bias_u = user.state.split([*cuts[:4], cuts[5]], -1)
        keys, values = user.history.split([d, d], -1)
        xa = attend(query, keys, values, user.mask, c.heads)
        x0 = torch.cat([xu.expand(-1, item.shape[1], -1), xi, xa], -1)
        low_a, deep_a = self._first_maps(xa, self.user_width + self.item_fields.width)
        hidden = self.drop(functional.relu(deep_u + deep_i + deep_a + self.deep_in.bias))
        product = factors_u * factors_i
        hidden = self.drop(functional.relu(self.deep_mid(torch.cat([hidden, product], -1))))
        x = x0
        for depth, layer in enumerate(self.crosses):
            x = layer(x0, x, low_u + low_i + low_a if depth == 0 else None)
        return self.out(torch.cat([x, product, hidden], -1)) + bias_u + bias_i

    def forward(
        self, user: Fields, history: Tensor, signal: Tensor, item: Fields, mask: Tensor | None = None
    ) -> Tensor:
        return self.cross(self.encode_user(user, history, signal, mask), self.encode_item(item))

    @torch.no_grad()
    def rescale(self, output: int, scale: float, shift: float) -> None:
        """Change the weights so that a logit is ``scale`` times what it was, plus ``shift``."""
        biases = (self.user_bias.weight[:, output], self.item_bias.weight[:, output])
        for part in (self.out.weight[output], self.out.bias[output], *biases):
            part.mul_(scale)
        self.out.bias[output] += shift

    def _user_maps(self, x: Tensor, offset: int) -> list[Tensor]:
        span = slice(offset, offset + x.shape[-1])
        return [*self._first_maps(x, offset), functional.linear(x, self.user_factors.weight[:, span])]

    def _first_maps(self, x: Tensor, offset: int) -> list[Tensor]:
        """The first cross layer's low-rank map and the first deep map, for the columns from ``offset``."""
        span = slice(offset, offset + x.shape[-1])
        maps = (self.crosses[0].down.weight, self.deep_in.weight)  # type: ignore[union-attr]
        return [functional.linear(x, weight[:, span]) for weight in maps]  # type: ignore[index]
