"""The two halves of a trained ranker as plain functions of tensors, in the form that is exported.

The user half runs once per request, the cross half once per batch of candidates. Both engines run
these modules: torch directly, ONNX Runtime after `ranking.export`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ranking.coarse import CoarseUser
from ranking.fine import UserTensors
from ranking.inputs import Fields, InputSpec
from ranking.training import Model


@dataclass(frozen=True)
class Outputs:
    """How logits become objectives: ratings are ``mean + std * logit`` within [low, high]."""

    objectives: tuple[str, ...]
    rating_mean: float = 0.0
    rating_std: float = 1.0
    rating_low: float = 0.0
    rating_high: float = 1.0

    def apply(self, logits: Tensor) -> Tensor:
        """Logits [..., O] to objectives [..., O] float32."""
        columns = []
        for k, name in enumerate(self.objectives):
            if name == "rating":
                rating = logits[..., k] * self.rating_std + self.rating_mean
                columns.append(rating.clamp(self.rating_low, self.rating_high))
            else:
                columns.append(torch.sigmoid(logits[..., k]))
        return torch.stack(columns, -1)


def user_inputs(spec: InputSpec) -> tuple[str, ...]:
    """Names of the user half's inputs, those of `UserBatch.inputs`; absent kinds of field are left out."""
    present = {"user_cat": True, "user_num": spec.user_num > 0, "user_multi": len(spec.user_multi) > 0}
    return (*(name for name, is_there in present.items() if is_there), "history", "signal")


class UserGraph(nn.Module):
    """Inputs by `user_inputs`; outputs by ``names``, each without the axis of views."""

    def __init__(self, model: Model):
        super().__init__()
        self.model = model
        self.inputs = user_inputs(model.spec)
        self.names = tuple(f"user_{part}" for part in model.user_parts)

    def forward(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        given = dict(zip(self.inputs, tensors, strict=True))
        cat = given["user_cat"].long()
        num = given.get("user_num", cat.new_zeros((cat.shape[0], 0), dtype=torch.float32))
        multi = given["user_multi"].long() if "user_multi" in given else cat.new_zeros((cat.shape[0], 0, 1))
        # A user row may carry more events than this ranker was trained with.
        events = (given[name][:, : self.model.spec.history].long() for name in ("history", "signal"))
        user = self.model.encode_user(Fields(cat, num, multi), *events)
        named = zip(self.model.user_parts, user, strict=True)
        return tuple(part if name == "history" else part.squeeze(1) for name, part in named)


class CrossGraph(nn.Module):
    """The user half's outputs and item states [B, C, Di] to objectives [B, C, O]."""

    def __init__(self, model: Model, outputs: Outputs):
        super().__init__()
        self.model, self.outputs = model, outputs
        self.inputs = (*UserGraph(model).names, "item_state")
        self.names = ("objectives",)

    def forward(self, *tensors: Tensor) -> Tensor:
        named = zip(self.model.user_parts, tensors[:-1], strict=True)
        parts = [part if name == "history" else part.unsqueeze(1) for name, part in named]
        user = UserTensors(*parts) if len(parts) > 1 else CoarseUser(*parts)
        return self.outputs.apply(self.model.cross(user, tensors[-1]))  # type: ignore[arg-type]
