"""The ways to put inference and training on one device."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

from pool.device import CAPACITY_MILLI

Manner = Literal["normal", "nice", "idle", "gate"]
"""How a trainer is run: as any process, at nice 19, under SCHED_IDLE, or by the pool's host: that and the gate."""

SERVING_MILLI = 700
"""Of the static partition: what inference needs to take the higher loads at all; the rest trains."""


@dataclass(frozen=True)
class Arm:
    """One way.

    Attributes:
        manner: of the trainer; None: there is none.
        serving_milli, training_milli: fixed parts of the device, 1000 where no part is fixed.
    """

    name: str
    manner: Manner | None
    serving_milli: int = CAPACITY_MILLI
    training_milli: int = CAPACITY_MILLI

    @property
    def is_gated(self) -> bool:
        return self.manner == "gate"


ALONE = Arm("alone", None)
AGAIN = Arm("alone again", None)
NAIVE = Arm("as any process", "normal")
RECPOOL = Arm("Recpool", "gate")
ARMS = (
    ALONE,
    NAIVE,
    Arm("nice 19", "nice"),
    AGAIN,
    Arm("SCHED_IDLE", "idle"),
    RECPOOL,
    Arm("static partition", "normal", SERVING_MILLI, CAPACITY_MILLI - SERVING_MILLI),
)


def stretch(used_ns: int, milli: int) -> None:
    """Wait as long as work that took used_ns of a whole device would take longer on a part of it."""
    if milli < CAPACITY_MILLI:
        time.sleep(used_ns / 1e9 * (CAPACITY_MILLI / milli - 1))
