"""What each arm's replicas cost and whom they failed, over the seeds, with bootstrap intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.autoscale.arms import KPA, RECPOOL, SEASONAL, SERVE
from benchmarks.autoscale.world import Played
from benchmarks.report import Floor

RESAMPLES = 2_000
FEWER = 0.9995
"""What counts as fewer: a difference in the last digit of a percent is none."""


@dataclass(frozen=True)
class Row:
    """One arm over one stretch.

    Attributes:
        violations_share: of the requests, late or refused beyond what the objective allows.
        hours: slice-hours; hours_ratio: over the oracle's.
        over, under: slice-hours above and below the oracle's, of its slice-hours.
        actions_per_hour: changes of the number of replicas.
    """

    violations_share: float
    hours: float
    hours_ratio: float
    over: float
    under: float
    actions_per_hour: float


COLUMNS = tuple(Row.__dataclass_fields__)
Rows = Mapping[str, Sequence[Row]]
"""By arm: one for each seed, in the same order for all."""


def row_of(played: Played, oracle: Played) -> Row:
    return Row(
        violations_share=played.violations / played.arrived,
        hours=played.hours,
        hours_ratio=played.hours / oracle.hours,
        over=played.beyond(oracle.replicas) / oracle.hours,
        under=played.short(oracle.replicas) / oracle.hours,
        actions_per_hour=played.actions_per_hour,
    )


def summary(rows: Rows, seed: int = 0) -> dict[str, dict[str, list[float]]]:
    """Mean over the seeds and its 95% bootstrap interval: [mean, low, high] by arm and figure."""
    return {
        name: {column: _interval([getattr(row, column) for row in each], seed) for column in COLUMNS}
        for name, each in rows.items()
    }


def paired_ratio(rows: Rows, arm: str, column: str, seed: int = 0) -> list[float]:
    """Recpool's sum of a figure over another arm's, with its interval; stretches are drawn for both together."""
    ours, others = (np.array([getattr(row, column) for row in rows[name]]) for name in (RECPOOL, arm))
    drawn = np.random.default_rng(seed).integers(0, len(ours), (RESAMPLES, len(ours)))
    ratios = ours[drawn].sum(axis=1) / np.maximum(others[drawn].sum(axis=1), 1e-12)
    mean = float(ours.sum() / max(others.sum(), 1e-12))
    return [mean, *(float(each) for each in np.quantile(ratios, (0.025, 0.975)))]


def floors(found: Mapping[str, Rows]) -> list[Floor]:
    """Of every trace: fewer violations than each reactive and the seasonal arm, at no more slice-hours than Serve."""
    made = []
    for trace, rows in found.items():
        for arm in (SERVE, KPA, SEASONAL):
            if arm in rows:
                ratio = paired_ratio(rows, arm, "violations_share")[0]
                made.append(Floor(f"{trace}: violations over {arm}'s", ratio, FEWER, "lower"))
        hours = paired_ratio(rows, SERVE, "hours")[0]
        made.append(Floor(f"{trace}: slice-hours over {SERVE}'s", hours, 1.0, "lower"))
    return made


def _interval(values: Sequence[float], seed: int) -> list[float]:
    known = np.array(values)
    means = known[np.random.default_rng(seed).integers(0, len(known), (RESAMPLES, len(known)))].mean(axis=1)
    return [float(known.mean()), *(float(each) for each in np.quantile(means, (0.025, 0.975)))]
