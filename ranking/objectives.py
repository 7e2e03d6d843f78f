"""Several objectives to one score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from configs.errors import ConfigError

RECALL = "recall"
OBJECTIVES = (RECALL, "engage", "like", "rating")
"""``recall``: what recall holds for the item, in standard deviations of its sources' lists. ``engage``: odds
share of an interaction against an item drawn uniformly, in (0, 1). ``like``: probability that the value
reaches the like threshold, given an interaction. ``rating``: expected value, in rating units."""


def combine(objectives: np.ndarray, names: Sequence[str], weights: Mapping[str, float]) -> np.ndarray:
    """Weighted sum of objectives [..., O] named ``names``; returns scores [...] float32.

    A weight whose objective is absent is ignored, as data without ratings has only "engage". A score
    any of whose weighted objectives is not finite becomes -inf, so every sort sinks it.

    Raises:
        ConfigError: a weight names no known objective, or none of the weights applies.
    """
    unknown = sorted(set(weights) - set(OBJECTIVES))
    if unknown:
        raise ConfigError(f"weights name unknown objectives {unknown}; known: {list(OBJECTIVES)}")
    used = [(k, float(weights[name])) for k, name in enumerate(names) if weights.get(name)]
    if not used:
        raise ConfigError(f"no weight applies to the objectives {list(names)}; give one of them a weight")
    with np.errstate(invalid="ignore"):
        scores = sum(np.float32(weight) * objectives[..., k].astype(np.float32, copy=False) for k, weight in used)
    return np.where(np.isfinite(scores), scores, -np.inf).astype(np.float32)
