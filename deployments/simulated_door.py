"""The live service's admission for simulated replicas: the same account of waits and costs, by virtual time."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, cast

from configs.errors import Overloaded
from configs.overload_settings import OverloadSettings
from pool.simulator.scenario import ServiceSettings
from serving.admission import Admission
from serving.preparation import Row
from serving.priority import Priority
from serving.quality import QualityController

KIND = "recommend"


@dataclass(frozen=True)
class _Asked:
    """What the account reads of a row."""

    priority: Priority = Priority.NORMAL


class LiveDoor:
    """Of one replica; see `pool.simulator.door.Door`. Requests are of normal priority and have no deadline."""

    def __init__(self, settings: OverloadSettings, service: ServiceSettings):
        settings = settings.model_copy(update={"max_wait_ms": service.max_wait_ms})
        self._admission = Admission(settings, service.max_batch_rows, 1, QualityController(settings))

    def admits(self, arrived_s: float, now_s: float) -> bool:
        try:
            return self._admission.admit(KIND, Priority.NORMAL, math.inf, arrived_s, now_s)
        except Overloaded:
            return False

    def queued(self, now_s: float) -> None:
        self._admission.queued(KIND, Priority.NORMAL, now_s)

    def most_rows(self, now_s: float) -> int:
        return self._admission.most_rows(KIND, now_s)

    def started(self, rows: int, waited_ms: float, now_s: float) -> Any:
        for _ in range(rows):
            self._admission.dequeued(KIND, Priority.NORMAL)
        return self._admission.started(KIND, cast(list[Row], [_Asked()] * rows), waited_ms, now_s)

    def done(self, batch: Any, now_s: float) -> None:
        self._admission.done(batch, now_s, is_whole=True)


def live_doors(settings: OverloadSettings) -> Callable[[ServiceSettings], LiveDoor]:
    """Doors of replicas under these settings."""
    return lambda service: LiveDoor(settings, service)
