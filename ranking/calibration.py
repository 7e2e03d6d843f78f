"""Logits that are log-odds: a ranker that trained long on few rows ranks well and sounds surer than it should."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize
from scipy.special import expit

from features.metrics import auc

LEAST_ROWS = 200
"""Fewer say less of a ranker's logits than its training does."""


class Scaling(NamedTuple):
    """A logit becomes ``scale`` times what it was, plus ``shift``."""

    scale: float = 1.0
    shift: float = 0.0


def platt(labels: np.ndarray, logits: np.ndarray) -> Scaling:
    """The scaling of logits [n] under which labels [n] bool are likeliest.

    No change where there are fewer than `LEAST_ROWS`, or where the logits rank no better than chance.

    Source: J. Platt 1999, "Probabilistic Outputs for Support Vector Machines", with his targets short of 0 and 1.
    """
    if len(labels) < LEAST_ROWS or not auc(labels, logits) > 0.5:
        return Scaling()
    x, positives = logits.astype(np.float64), int(labels.sum())
    targets = np.where(labels, (positives + 1) / (positives + 2), 1 / (len(labels) - positives + 2))

    def loss(scaling: np.ndarray) -> tuple[float, np.ndarray]:
        z = scaling[0] * x + scaling[1]
        off = expit(z) - targets
        return float(np.mean(np.logaddexp(0, z) - targets * z)), np.array([np.mean(off * x), np.mean(off)])

    scale, shift = minimize(loss, np.array(Scaling()), jac=True, method="BFGS").x.tolist()
    return Scaling(scale, shift) if scale > 0 else Scaling()
