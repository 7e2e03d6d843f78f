"""The figures that both are held against each other by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass

import numpy as np

from benchmarks.load import Outcomes
from benchmarks.report import Floor

ALLOWED = 0.15
ANSWERED = 200
NAMES = ("utilisation", "p50_ms", "p99_ms", "violations")


@dataclass(frozen=True)
class Figures:
    """Of one replay.

    Attributes:
        utilisation: share of the devices' time in which a gateway computed.
        violations: share of the requests that were late, degraded or not answered.
    """

    utilisation: float
    p50_ms: float
    p99_ms: float
    violations: float

    def as_dict(self) -> dict[str, float]:
        return asdict(self)


def of_live(outcomes: Outcomes, slo_ms: float, busy_s: float, device_s: float) -> Figures:
    """What the load generator saw.

    Args:
        busy_s: device time that the gates metered, of device_s that there was.
    """
    good = (outcomes.status == ANSWERED) & outcomes.found & (outcomes.latency_s * 1e3 <= slo_ms)
    latency_ms = outcomes.latency_s[outcomes.status == ANSWERED] * 1e3
    p50_ms, p99_ms = np.quantile(latency_ms, (0.5, 0.99)).tolist()
    return Figures(busy_s / device_s, p50_ms, p99_ms, 1 - float(good.mean()))


def errors(live: Figures, simulated: Figures) -> dict[str, float]:
    """Of the simulated figures, relative to the live ones; of violations in shares of all requests where live ones
    are less than one in a hundred, as a few requests more or less are then no error of the model."""
    found = {}
    for name in NAMES:
        there, here = getattr(live, name), getattr(simulated, name)
        rare = name == "violations" and there < 0.01
        found[name] = abs(here - there) if rare else abs(here - there) / there
    return found


def floors(found: Mapping[str, float]) -> list[Floor]:
    return [Floor(f"error of {name}", found[name], ALLOWED, "lower") for name in NAMES]
