"""The event log as a Redis stream, shared by many hosts.

Beside the stream there are a hash, from event ids to positions, and a sorted set of the positions that
have not been brought to the feature store. A batch is one script, so it is kept whole or not at all. An
entry's stream id is ``<position>-0``.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from configs.errors import Unavailable
from configs.event_settings import EventSettings
from features.event_log_records import LoggedEvent, checked_row
from features.redis_client import answering, connect

APPEND = """
local kept = {}
for first = 2, #ARGV, 6 do
    if redis.call("HEXISTS", KEYS[2], ARGV[first]) == 1 then
        kept[#kept + 1] = 0
    else
        local position = redis.call("HLEN", KEYS[2]) + 1
        redis.call("XADD", KEYS[1], position .. "-0", "event_id", ARGV[first], "kind", ARGV[first + 1],
                   "time_s", ARGV[first + 2], "user_id", ARGV[first + 3], "payload", ARGV[first + 4])
        redis.call("HSET", KEYS[2], ARGV[first], position)
        if ARGV[first + 5] == "1" then redis.call("ZADD", KEYS[3], ARGV[1], position) end
        kept[#kept + 1] = position
    end
end
return kept
"""
"""ARGV: the time, then six values for each record. Ids are never taken back, so their number is the last position."""
NOBODY, SOMEBODY = b"-", b"+"
"""First byte of a stored user id, which may be absent."""
FIELDS = (b"event_id", b"kind", b"time_s", b"user_id", b"payload")
READ_AT_ONCE = 1_000


class RedisEventLog:
    """Records on a server.

    Args:
        namespace: sets this dataset's keys apart from others on the server.
        durable: refuse to write while the server would not sync each write (`EventSettings.require_durable`).
        clock: seconds since 1970.
    Raises:
        ConfigError: ``events.redis_url`` is no URL of a server.

    Every method raises Unavailable within about ``settings.redis_timeout_ms`` when the server does not answer.
    """

    def __init__(
        self, settings: EventSettings, namespace: str, durable: bool = True, clock: Callable[[], float] = time.time
    ):
        self._url, self._clock = settings.redis_url, clock
        self._client = connect(self._url, settings.redis_timeout_ms / 1000, "events.redis_url")
        self._keys = [f"recpool:{namespace}:events:{part}" for part in ("stream", "ids", "pending")]
        self._must_sync, self._syncs = durable and settings.require_durable, False
        self._append = self._client.register_script(APPEND)

    def append(self, records: Sequence[Mapping[str, Any]]) -> list[int | None]:
        """See `EventLog.append`."""
        rows = [checked_row(record, place) for place, record in enumerate(records)]
        if not rows:
            return []
        values: list[Any] = [self._clock()]
        for (event_id, kind, time_s, user_id, payload), record in zip(rows, records, strict=True):
            user = NOBODY if user_id is None else SOMEBODY + user_id.encode()
            values += [event_id, kind, repr(time_s), user, payload, int(bool(record.get("pending")))]
        with self._answering():
            self._check_sync()
            return [position or None for position in self._append(self._keys, values)]

    def find(self, event_ids: Sequence[str]) -> dict[str, LoggedEvent]:
        """See `EventLog.find`."""
        with self._answering():
            found = self._at(self._positions(event_ids))
        return {event.event_id: event for event in found}

    def read(self, after: int = 0, limit: int = 1000, kind: str | None = None) -> list[LoggedEvent]:
        """The next events behind a position, in the order of writing."""
        found: list[LoggedEvent] = []
        with self._answering():
            while len(found) < limit:
                entries: Any = self._client.xrange(self._keys[0], min=f"{after + 1}-0", count=READ_AT_ONCE)
                if not entries:
                    break
                events = [_event(*entry) for entry in entries]
                after = events[-1].position
                found += [event for event in events if kind in (None, event.kind)]
        return found[:limit]

    def pending(self, event_ids: Sequence[str]) -> list[LoggedEvent]:
        """See `EventLog.pending`."""
        with self._answering():
            positions = self._positions(event_ids)
            if not positions:
                return []
            since: Any = self._client.zmscore(self._keys[2], [str(each) for each in positions])
            return self._at([each for each, at_s in zip(positions, since, strict=True) if at_s is not None])

    def overdue(self, older_than_s: float, limit: int = 1000) -> list[LoggedEvent]:
        """See `EventLog.overdue`."""
        before_s = self._clock() - older_than_s
        with self._answering():
            waiting: Any = self._client.zrangebyscore(self._keys[2], 0, before_s, start=0, num=limit)
            return self._at(sorted(map(int, waiting)))

    def settle(self, positions: Sequence[int]) -> None:
        """See `EventLog.settle`."""
        if positions:
            with self._answering():
                self._client.zrem(self._keys[2], *positions)

    def flush(self) -> None:
        """There is nothing to do: the server was told at once."""

    def close(self) -> None:
        """Let go of the connections; closing twice is harmless."""
        self._client.close()

    def _positions(self, event_ids: Sequence[str]) -> list[int]:
        if not event_ids:
            return []
        found: Any = self._client.hmget(self._keys[1], list(event_ids))
        return [int(position) for position in found if position is not None]

    def _at(self, positions: Sequence[int]) -> list[LoggedEvent]:
        """Entries at some positions; those that the stream no longer has are left out."""
        if not positions:
            return []
        with self._client.pipeline(transaction=False) as pipeline:
            for position in positions:
                pipeline.xrange(self._keys[0], min=f"{position}-0", max=f"{position}-0")
            return [_event(*entry) for entries in pipeline.execute() for entry in entries]

    def _check_sync(self) -> None:
        """Look at the server's settings once after each time it was away."""
        if not self._must_sync or self._syncs:
            return
        told: Any = {**self._client.config_get("appendonly"), **self._client.config_get("appendfsync")}
        if (told.get("appendonly"), told.get("appendfsync")) != ("yes", "always"):
            raise Unavailable(
                "event log: the Redis server may lose what it acknowledges; start it with `appendonly yes` and "
                "`appendfsync always`, or set events.require_durable to false"
            )
        self._syncs = True

    @contextmanager
    def _answering(self) -> Iterator[None]:
        try:
            with answering("event log", self._url):
                yield
        except Unavailable:
            self._syncs = False  # it may come back with other settings
            raise


def _event(stream_id: bytes, fields: Mapping[bytes, bytes]) -> LoggedEvent:
    event_id, kind, time_s, user, payload = (fields[name] for name in FIELDS)
    user_id = None if user == NOBODY else user[1:].decode()
    position = int(stream_id.split(b"-")[0])
    return LoggedEvent.of(position, event_id.decode(), kind.decode(), float(time_s), user_id, payload)
