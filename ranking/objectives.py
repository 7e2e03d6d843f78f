"""Several objectives to one score."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from configs.errors import ConfigError
from features.compiled import compiled

RECALL = "recall"
OBJECTIVES = (RECALL, "engage", "like", "rating")
"""``recall``: what recall holds for the item, in standard deviations of its sources' lists. ``engage``: odds
share of an interaction against an item drawn uniformly, in (0, 1). ``like``: probability that the value
reaches the like threshold, given an interaction. ``rating``: expected value, in rating units."""


@dataclass(frozen=True)
class Weighting:
    """How much each of some objectives counts: values [O] float32, in the order of ``names``."""

    names: tuple[str, ...]
    values: np.ndarray

    @classmethod
    def of(cls, names: tuple[str, ...], weights: Mapping[str, float]) -> Weighting:
        """A weight whose objective is absent is ignored, as data without ratings has only "engage".

        Raises:
            ConfigError: a weight names no known objective, or none of the weights applies.
        """
        unknown = sorted(set(weights) - set(OBJECTIVES))
        if unknown:
            raise ConfigError(f"weights name unknown objectives {unknown}; known: {list(OBJECTIVES)}")
        values = np.array([weights.get(name, 0.0) for name in names], np.float32)
        if not values.any():
            raise ConfigError(f"no weight applies to the objectives {list(names)}; give one of them a weight")
        return cls(names, values)


# Arguments may be read-only, as what came from another process is.
@compiled(
    "Tuple((float32[:, :, ::1], float32[:, ::1]))(Array(int32, 2, 'C', True), Array(float32, 2, 'C', True), "
    "Array(float32, 3, 'C', True), Array(float32, 1, 'C', True))"
)
def combine(items, evidence, objectives, weights):
    """All objectives of each candidate, recall's among them, and their weighted sum.

    An objective of weight 0 does not count at all. The score of padding, and one any of whose weighted
    objectives is not finite, is -inf, so every sort sinks it.

    Args:
        items: [B, C], padded with 0.
        evidence: [B, C], what recall holds for each item, or [B, 0] without any.
        objectives: [B, F, O], a ranker's, of the first F items.
        weights: [O], or [1 + O] with that of the evidence in front.
    Returns:
        objectives [B, F, len(weights)], NaN at padding, and scores [B, F].
    """
    rows, head, width = objectives.shape
    first = 1 if evidence.shape[1] else 0
    both = np.empty((rows, head, first + width), np.float32)
    scores = np.empty((rows, head), np.float32)
    for row in range(rows):
        for place in range(head):
            is_real, score = items[row, place] != 0, np.float32(0.0)
            for k in range(first + width):
                value = evidence[row, place] if k < first else objectives[row, place, k - first]
                both[row, place, k] = value if is_real else np.float32(np.nan)
                if weights[k] != 0:
                    score += weights[k] * value
            scores[row, place] = score if is_real and np.isfinite(score) else np.float32(-np.inf)
    return both, scores
