"""Which expert to believe at which lead, learnt from what each would have earned."""

from __future__ import annotations

from typing import Any

import numpy as np

FADING = 0.998
"""What a past error counts after one more; about 500 errors are remembered. Chosen on the first 70% of the traces."""
SURE = 2.0
"""Standard errors by which the mixture must have been better than the first expert to be trusted wholly."""

KEPT = ("overlap", "regret", "energy", "largest", "gain", "noise")


class Blend:
    """Convex weights of experts, a row for each lead: a mixture of all, as far as it is surely better than the first.

    The mixture is ML-Poly (Gaillard, Stoltz, van Erven, "A Second-order Bound with Excess Losses", COLT 2014) on the
    gradient of the absolute error, so it is held to the best mixture and not only to the best expert; its sums fade,
    since what was right months ago need not be. It has no learning rate to tune.

    Errors of forecasts that were under way together are much the same error. So few of them may look like a rule; the
    mixture is believed by how many standard errors it was better than the first expert, and the rest stays there.

    Args:
        overlap: forecasts that are under way at once, at each lead, [L].
    """

    def __init__(self, overlap: np.ndarray, experts: int):
        self.overlap = np.asarray(overlap, np.float64)
        self.regret, self.energy, self.largest = np.zeros((3, len(overlap), experts))
        self.gain, self.noise = np.zeros((2, len(overlap)))

    def trust(self, rows: np.ndarray) -> np.ndarray:
        """In the mixture, 0..1, [D]."""
        error = np.sqrt(self.noise[rows] * self.overlap[rows])
        return np.clip(self.gain[rows] / np.maximum(SURE * error, 1e-12), 0.0, 1.0)

    def weights(self, rows: np.ndarray, known: np.ndarray) -> np.ndarray:
        """Of the experts that know something, float64 [D, E]; each row sums to 1.

        Args:
            rows: leads, [D].
            known: bool [D, E]; the first is always known.
        """
        trust = self.trust(rows)
        weights = self._mixture(rows, known) * trust[:, None]
        weights[:, 0] += 1 - trust
        return weights

    def learn(self, rows: np.ndarray, told: np.ndarray, rates: np.ndarray) -> None:
        """Take what became of past forecasts.

        Args:
            told: [D, E] forecasts, NaN where an expert knew nothing: it neither earns nor loses.
            rates: [D] what came.
        """
        known = np.isfinite(told)
        filled = np.where(known, told, 0.0)
        blended = (self._mixture(rows, known) * filled).sum(axis=1)
        gain = np.abs(told[:, 0] - rates) - np.abs(blended - rates)
        self.gain[rows] = FADING * self.gain[rows] + gain
        self.noise[rows] = FADING**2 * self.noise[rows] + gain**2
        earned = np.where(known, np.sign(blended - rates)[:, None] * (blended[:, None] - filled), 0.0)
        square = earned**2
        largest = np.maximum(self.largest[rows] * FADING, square)
        self.energy[rows] = FADING * self.energy[rows] + square + np.maximum(largest - self.largest[rows], 0.0)
        self.largest[rows] = largest
        self.regret[rows] = FADING * self.regret[rows] + earned

    def _mixture(self, rows: np.ndarray, known: np.ndarray) -> np.ndarray:
        """ML-Poly's weights, [D, E]; all on the first expert while none has earned any."""
        earned = np.maximum(self.regret[rows], 0.0) / np.maximum(self.energy[rows], 1e-12) * known
        total = earned.sum(axis=1, keepdims=True)
        first = np.zeros(earned.shape)
        first[:, 0] = 1.0
        return np.where(total > 0, earned / np.where(total > 0, total, 1.0), first)

    def plain(self) -> dict[str, Any]:
        return {name: getattr(self, name).tolist() for name in KEPT}

    @classmethod
    def restored(cls, plain: dict[str, Any]) -> Blend:
        blend = cls(np.array(plain["overlap"]), np.shape(plain["regret"])[1])
        blend.overlap, blend.regret, blend.energy, blend.largest, blend.gain, blend.noise = (
            np.array(plain[name], np.float64) for name in KEPT
        )
        return blend
