"""A linear rule of the experts' forecasts, a row for each lead, fitted as errors come in."""

from __future__ import annotations

from typing import Any

import numpy as np

FORGETTING = 0.999
"""What a past error counts after one more. Chosen on the first 70% of the traces."""
CERTAINTY = 1.0
"""How firmly the rule begins at the first expert: as after so many errors of the usual size."""


class Regression:
    """Recursive least squares with forgetting: finds what no mixture can, such as last + week then - week now.

    Source: Ljung, "System Identification", 2nd ed., section 11.2. It is one more expert of the blend and as such never
    trusted blindly.

    Args:
        overlap: forecasts that are under way at once, at each lead, [L]; one error counts that much less, since they
            are much the same.
    """

    def __init__(self, overlap: np.ndarray, experts: int):
        self.overlap = np.asarray(overlap, np.float64)
        self.rule = np.zeros((len(overlap), experts))
        self.rule[:, 0] = 1.0
        self.covariance = np.broadcast_to(np.eye(experts) / CERTAINTY, (len(overlap), experts, experts)).copy()

    def foretell(self, rows: np.ndarray, told: np.ndarray) -> np.ndarray:
        """[D] forecasts from the experts' [D, E]; one that knows nothing speaks like the first."""
        return np.maximum((self.rule[rows] * _filled(told)).sum(axis=1), 0.0)

    def share(self, rows: np.ndarray, experts: np.ndarray) -> np.ndarray:
        """Of the rule's coefficients, by size, those of some experts (bool [E]): [D], 0..1."""
        size = np.abs(self.rule[rows])
        return size @ experts / size.sum(axis=1)

    def learn(self, rows: np.ndarray, told: np.ndarray, rates: np.ndarray, scale: float) -> None:
        """Take what became of past forecasts.

        Args:
            rates: [D] what came.
            scale: usual size of a rate, above 0, which makes the rule indifferent to units.
        """
        inputs = _filled(told) / scale
        covariance = self.covariance[rows]
        spread = np.einsum("dij,dj->di", covariance, inputs)
        gain = spread / (FORGETTING * self.overlap[rows] + (inputs * spread).sum(axis=1))[:, None]
        missed = rates / scale - (self.rule[rows] * inputs).sum(axis=1)
        self.rule[rows] += gain * missed[:, None]
        covariance = (covariance - gain[:, :, None] * spread[:, None, :]) / FORGETTING
        covariance = (covariance + covariance.transpose(0, 2, 1)) / 2
        # A direction in which nothing varies would grow without end.
        trace = np.trace(covariance, axis1=1, axis2=2)
        limit = covariance.shape[1] / CERTAINTY * 10
        self.covariance[rows] = covariance * np.minimum(1.0, limit / trace)[:, None, None]

    def plain(self) -> dict[str, Any]:
        return {name: getattr(self, name).tolist() for name in ("overlap", "rule", "covariance")}

    @classmethod
    def restored(cls, plain: dict[str, Any]) -> Regression:
        regression = cls(np.array(plain["overlap"]), np.shape(plain["rule"])[1])
        regression.rule = np.array(plain["rule"], np.float64)
        regression.covariance = np.array(plain["covariance"], np.float64)
        return regression


def _filled(told: np.ndarray) -> np.ndarray:
    return np.where(np.isfinite(told), told, told[:, :1])
