"""Who may join the line of a replica: a part that the serving path has its own rules for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from pool.simulator.batch_draws import BatchDraws
from pool.simulator.scenario import ServiceSettings


class Door(Protocol):
    """Of one replica. Whoever brings the live service's admission implements it with that; see `MakeDoor`."""

    def admits(self, arrived_s: float, now_s: float) -> bool:
        """Whether a request may join the line."""
        ...

    def queued(self, now_s: float) -> None:
        """One joins it."""
        ...

    def most_rows(self, now_s: float) -> int:
        """Rows that the next batch may hold."""
        ...

    def started(self, rows: int, waited_ms: float, now_s: float) -> Any:
        """Rows leave the line for a batch, the first of them after so long; the answer is handed to `done`."""
        ...

    def done(self, batch: Any, now_s: float) -> None: ...


class ShortLine:
    """As many may wait as the replica works off within the longest wait."""

    def __init__(self, service: ServiceSettings):
        draws = BatchDraws(service.profiles[service.tier[0]], service.max_batch_rows)
        self._most = max(1.0, draws.per_s * service.max_wait_ms / 1e3)
        self._rows = service.max_batch_rows
        self._waiting = 0

    def admits(self, arrived_s: float, now_s: float) -> bool:
        return self._waiting < self._most

    def queued(self, now_s: float) -> None:
        self._waiting += 1

    def most_rows(self, now_s: float) -> int:
        return self._rows

    def started(self, rows: int, waited_ms: float, now_s: float) -> None:
        self._waiting -= rows

    def done(self, batch: None, now_s: float) -> None:
        return


MakeDoor = Callable[[ServiceSettings], Door]
