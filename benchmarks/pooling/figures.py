"""How much of the devices' time became useful work, and how long callers waited."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from benchmarks.colocation.figures import quantile
from benchmarks.pooling.arms import DEDICATED, POOL
from benchmarks.report import Floor

SLO_MS = 50.0
UTILISATION, LATENCY = 1.35, 0.78


@dataclass(frozen=True)
class Played:
    """The trace, played once to one division of the devices.

    Attributes:
        seconds: that it took. device_s: device time there was meanwhile.
        latency_ms: [N] of all answers, from when requests were due.
        good: requests answered in full quality within the SLO. asked: all requests.
        serving_cpu_s, training_cpu_s: processor time of the serving and the training processes.
        units: of training.
    """

    seconds: float
    device_s: float
    latency_ms: np.ndarray
    good: int
    asked: int
    serving_cpu_s: float
    training_cpu_s: float
    units: int


@dataclass(frozen=True)
class Costs:
    """Device seconds of a request and of a unit of training, undisturbed: the yardstick of useful work.

    With one for all arms, work that takes longer because of a neighbour does not count for more.
    """

    request_s: float
    unit_s: float

    @classmethod
    def of(cls, dedicated: Played) -> Costs:
        return cls(dedicated.serving_cpu_s / dedicated.asked, dedicated.training_cpu_s / dedicated.units)


def figures_of(played: Played, costs: Costs) -> dict[str, float]:
    serving = played.good * costs.request_s / played.device_s
    training = played.units * costs.unit_s / played.device_s
    return {
        "utilisation": serving + training,
        "serving": serving,
        "training": training,
        "metered": (played.serving_cpu_s + played.training_cpu_s) / played.device_s,
        "in_slo": played.good / played.asked,
        "p50_ms": quantile(played.latency_ms, 0.5),
        "p99_ms": quantile(played.latency_ms, 0.99),
        "units_per_s": played.units / played.seconds,
    }


def summarise(played: Mapping[str, Sequence[Played]]) -> dict[str, dict[str, float]]:
    """Medians over the repeats, by arm; ratios are to the dedicated devices of the same repeat."""
    found: dict[str, dict[str, float]] = {}
    for name, repeats in played.items():
        rows = []
        for mine, dedicated in zip(repeats, played[DEDICATED], strict=True):
            costs = Costs.of(dedicated)
            row, base = figures_of(mine, costs), figures_of(dedicated, costs)
            compared = ("utilisation", "p50_ms", "p99_ms")
            rows.append({**row, **{f"{each.removesuffix('_ms')}_ratio": row[each] / base[each] for each in compared}})
        found[name] = {each: statistics.median(row[each] for row in rows) for each in rows[0]}
    return found


def floors(found: Mapping[str, Mapping[str, float]]) -> list[Floor]:
    """What pooling is to bring over dedicated devices."""
    pool = found[POOL]
    return [
        Floor("useful work over dedicated", pool["utilisation_ratio"], UTILISATION),
        Floor("p99 over dedicated", pool["p99_ratio"], LATENCY, "lower"),
    ]
