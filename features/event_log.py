"""What happened, kept for training and analysis: one small protocol, two implementations.

`features.event_log_records` says what a record is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from configs.errors import ConfigError
from configs.settings import Settings
from features.event_log_records import LoggedEvent
from features.event_log_redis import RedisEventLog
from features.event_log_sqlite import SqliteEventLog

__all__ = ["EventLog", "LoggedEvent", "RedisEventLog", "SqliteEventLog", "open_event_log"]


class EventLog(Protocol):
    """Somewhere records go and stay. Methods raise Unavailable when the log does not answer."""

    def append(self, records: Sequence[Mapping[str, Any]]) -> list[int | None]:
        """Keep all records or, on an error, none; returns the position of each, None for a repeat.

        Raises:
            InvalidRequest: a record lacks a field or holds the wrong type; names position and field.
            Unavailable: the log cannot be written now. What was sent may have been kept all the same; sending
                it again keeps it once.
        """
        ...

    def find(self, event_ids: Sequence[str]) -> dict[str, LoggedEvent]:
        """Kept records by id; absent ones are left out."""
        ...

    def read(self, after: int = 0, limit: int = 1000, kind: str | None = None) -> list[LoggedEvent]:
        """The next records behind a position, in the order of writing."""
        ...

    def pending(self, event_ids: Sequence[str]) -> list[LoggedEvent]:
        """Those of the ids that nobody has yet said to be in the feature store."""
        ...

    def overdue(self, older_than_s: float, limit: int = 1000) -> list[LoggedEvent]:
        """Pending records that were kept that long ago, oldest first: their writer died, or the store was away."""
        ...

    def settle(self, positions: Sequence[int]) -> None:
        """These are in the feature store; a log may take its time to note it."""
        ...

    def flush(self) -> None:
        """Note at once what `settle` was told."""
        ...

    def close(self) -> None: ...


LOGS: dict[str, Callable[[Settings, bool], EventLog]] = {
    "embedded": lambda settings, durable: SqliteEventLog(settings.event_log_file, durable),
    "redis": lambda settings, durable: RedisEventLog(settings.events, settings.dataset, durable),
}


def open_event_log(settings: Settings, durable: bool = True) -> EventLog:
    """Open the log that the settings name.

    Args:
        durable: see the implementation; False for what may be lost with the machine.
    Raises:
        ConfigError: no log of that kind; lists the known ones. Unavailable: it cannot be opened.
    """
    kind = settings.events.log
    if kind not in LOGS:
        raise ConfigError(f"events.log {kind!r} is unknown; known kinds: {sorted(LOGS)}")
    return LOGS[kind](settings, durable)
