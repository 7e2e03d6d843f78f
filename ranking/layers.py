"""Building blocks of the rankers: field embeddings, signed-history attention, low-rank cross layers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ranking.inputs import Fields

UNKNOWN = 1
EMBEDDING_STD = 0.05
RECENT = 10
"""Events in the short-term pool: about one sitting of a user."""


def embedding(rows: int, dim: int, std: float = EMBEDDING_STD) -> nn.Embedding:
    table = nn.Embedding(rows, dim)
    nn.init.normal_(table.weight, std=std)
    return table


class FieldEmbeddings(nn.Module):
    """Concatenated embeddings of all fields of one side.

    Categorical columns give one vector each, multi-valued ones the mean of their non-padding values,
    numeric ones pass through. Output [..., width] float32.
    """

    def __init__(self, cat: tuple[int, ...], num: int, multi: tuple[int, ...], dim: int):
        super().__init__()
        self.cat = nn.ModuleList(embedding(rows, dim) for rows in cat)
        self.multi = nn.ModuleList(embedding(rows, dim) for rows in multi)
        self.width = (len(cat) + len(multi)) * dim + num

    def forward(self, fields: Fields) -> Tensor:
        parts = [table(fields.cat[..., k]) for k, table in enumerate(self.cat)]
        parts += [self._mean(table, fields.multi[..., k, :]) for k, table in enumerate(self.multi)]
        if fields.num.shape[-1]:
            parts.append(fields.num)
        return torch.cat(parts, -1)

    @staticmethod
    def _mean(table: nn.Module, values: Tensor) -> Tensor:
        kept = (values > 0).unsqueeze(-1).float()
        return (table(values) * kept).sum(-2) / kept.sum(-2).clamp(min=1.0)


def drop_ids(cat: Tensor, rate: float) -> Tensor:
    """Send ids (column 0 of cat [..., F] int64) to the unknown bucket at random, so the bucket learns an average."""
    dropped = torch.rand(cat.shape[:-1]) < rate
    return torch.cat([cat[..., :1].masked_fill(dropped.unsqueeze(-1), UNKNOWN), cat[..., 1:]], -1)


class SignedHistory(nn.Module):
    """History events as attention keys and values, each [B, H + 1, out] float32.

    A liked and a disliked event of the same item differ by a scale and a shift learned per signal,
    so attention can pull towards one and push away from the other. The last event is a learned key
    with value zero that is always there: an empty or unrelated history attends to it and gives zeros.
    """

    def __init__(self, item_rows: int, dim: int, out: int):
        super().__init__()
        self.items = embedding(item_rows, dim)
        self.scale = embedding(3, dim, std=0.1)
        self.shift = embedding(3, dim)
        self.keys = nn.Linear(dim, out)
        self.values = nn.Linear(dim, out)
        self.rest = nn.Parameter(torch.zeros(out))

    def forward(self, history: Tensor, signal: Tensor) -> tuple[Tensor, Tensor]:
        events = self.items(history) * (1.0 + self.scale(signal)) + self.shift(signal)
        keys, values = self.keys(events), self.values(events)
        # Built from the keys rather than expanded: a traced graph would fix the batch size.
        nothing = torch.zeros_like(keys[:, :1])
        return torch.cat([keys, nothing + self.rest], 1), torch.cat([values, nothing], 1)


def attend(query: Tensor, keys: Tensor, values: Tensor, mask: Tensor, heads: int) -> Tensor:
    """Multi-head target attention.

    Args:
        query: [B, C, D]; keys, values: [B, H, D]; mask: [B, 1 or C, H] float32, 1 for a usable event.
    Returns:
        [B, C, D].
    """

    def by_head(x: Tensor) -> Tensor:
        return x.unflatten(-1, (heads, -1)).transpose(1, 2)

    # A large finite penalty: infinities would give NaN gradients where a row has no event.
    bias = ((mask - 1.0) * 1e4).unsqueeze(1)
    out = functional.scaled_dot_product_attention(by_head(query), by_head(keys), by_head(values), attn_mask=bias)
    return out.transpose(1, 2).flatten(2)


def pools(values: Tensor, signal: Tensor, mask: Tensor) -> list[Tensor]:
    """Summaries of a history, each [B, R, ...]: means of liked, disliked and recent events, and two shares.

    Args:
        values: [B, H, D]; signal: [B, H] int64; mask: [B, R, H] float32.
    """
    liked = (signal == 2).float().unsqueeze(1) * mask
    recent = mask * (mask.cumsum(-1) <= RECENT)
    total = mask.sum(-1, keepdim=True)
    means = [m @ values / (m.sum(-1, keepdim=True) + 1.0) for m in (liked, mask - liked, recent)]
    return [*means, liked.sum(-1, keepdim=True) / (total + 1.0), torch.log1p(total) / 5.0]


class LowRankCross(nn.Module):
    """One DCNv2 layer: ``x0 * (up(down(x)) + bias) + x``.

    Source: Wang et al. 2021, "DCN V2", eq. 1 with the low-rank factorisation of section 3.1.
    """

    def __init__(self, width: int, rank: int):
        super().__init__()
        self.down = nn.Linear(width, rank, bias=False)
        self.up = nn.Linear(rank, width)

    def forward(self, x0: Tensor, x: Tensor, low: Tensor | None = None) -> Tensor:
        """``low`` [..., rank] stands in for ``down(x)`` when it was computed in parts."""
        return x0 * self.up(self.down(x) if low is None else low) + x
