"""Losses of the rankers' objectives, all on logits."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional

from ranking.recipes import LossWeights

SCALE_WEIGHT = 0.05
"""Pulls the mean odds of sampled items to one, which pins the constant that a softmax leaves free."""


def sampled_softmax(positive: Tensor, negative: Tensor, same: Tensor, odds: Tensor, catalogue: int) -> Tensor:
    """Cross-entropy of each positive against the whole catalogue, estimated from sampled items.

    Args:
        positive: [G, C] logits; negative: [G, N] logits of items drawn with probability ``odds`` [G, N].
        same: [G, C, N] bool, where a drawn item is the positive itself; left out of its sum.
        catalogue: number of items.
    Returns:
        [G, C].
    Source: Bengio and Senecal 2008, importance-sampled softmax.
    """
    against = (negative - torch.log(odds * catalogue)).unsqueeze(1).masked_fill(same, -1e4)
    mean_odds = torch.logsumexp(against, -1) - math.log(negative.shape[1])
    total = torch.logaddexp(positive, mean_odds + math.log(catalogue))
    return total - positive + SCALE_WEIGHT * mean_odds.square()


def value_losses(
    logits: Tensor,
    values: Tensor,
    names: tuple[str, ...],
    like_at: float,
    weights: LossWeights,
    mean: float,
    std: float,
) -> Tensor:
    """Loss of the objectives that read the value; rows without one [NaN] are left out.

    Args:
        logits: [n, O]; values: [n]; mean, std: of the training values, to standardise ratings.
    """
    known = torch.isfinite(values)
    logits, values = logits[known], values[known]
    total = logits.new_zeros(())
    if not len(values):
        return total
    if "like" in names:
        labels = (values >= like_at).float()
        loss = functional.binary_cross_entropy_with_logits(logits[:, names.index("like")], labels)
        total = total + weights.like * loss
    if "rating" in names:
        loss = functional.mse_loss(logits[:, names.index("rating")], (values - mean) / std)
        total = total + weights.rating * loss
    return total
