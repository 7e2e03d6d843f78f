"""The ways to divide two devices between serving and training."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from benchmarks.colocation.arms import RECPOOL, Arm
from pool.device import CAPACITY_MILLI

HEADROOM = 0.7
"""Of what fills one device: the peak of the trace. At random arrivals and one at a time (M/D/1), one request of 100
waits over 6 times as long as a request takes there, and over 13 times at .85, which is more than the SLO allows."""
P95 = 0.95
DEDICATED, AT_PEAK, AT_P95, POOL = "dedicated", "slice for the peak", "slice for P95", "pool"


@dataclass(frozen=True)
class Division:
    """Who has what.

    Attributes:
        devices: how each is shared.
        serves: whether requests are sent there.
    """

    name: str
    devices: tuple[Arm, Arm]
    serves: tuple[bool, bool]

    @property
    def serving_milli(self) -> int:
        """What is kept for serving and no one else has; 0 in a pool, which keeps nothing."""
        kept = zip(self.devices, self.serves, strict=True)
        return sum(arm.serving_milli for arm, serves in kept if serves and not arm.is_gated)


def divisions(load: np.ndarray) -> tuple[Division, ...]:
    """All arms for a load [N] whose highest is 1.

    Dedicated: a device each. Slices: one device is cut into the part that serving needs for the highest load, or for
    its 95th percentile, and the rest, which trains as the other device does. Pool: both devices do both.
    """
    training = Arm("trains", "normal", CAPACITY_MILLI, CAPACITY_MILLI)
    peak, p95 = (slice_milli(need * HEADROOM) for need in (1.0, float(np.quantile(load, P95))))
    one = (True, False)
    return (
        Division(DEDICATED, (Arm("serves", None), training), one),
        Division(AT_PEAK, (_cut(peak), training), one),
        Division(AT_P95, (_cut(p95), training), one),
        Division(POOL, (RECPOOL, RECPOOL), (True, True)),
    )


def slice_milli(need: float) -> int:
    """The slice of a device that sustains so much of what the device does, in steps of 10."""
    return min(CAPACITY_MILLI, int(np.ceil(need * CAPACITY_MILLI / 10 - 1e-9)) * 10)


def _cut(serving_milli: int) -> Arm:
    return Arm("cut", "normal", serving_milli, CAPACITY_MILLI - serving_milli)
