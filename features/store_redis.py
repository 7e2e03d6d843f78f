"""The feature store on a Redis server, shared by many hosts.

A user has three keys: the profile, the base history of the last bulk load, and a list of live
events with the most recent in front. Appending is one atomic transaction on the server, so no
writer overwrites another's events.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import islice
from typing import Any

import orjson
import redis

from configs.settings import StoreSettings
from features.datasets import Dataset
from features.redis_client import answering, connect
from features.store_records import (
    History,
    UserEvent,
    UserRecord,
    encode,
    is_left_over,
    load_rows,
    merge,
    user_key,
    user_record,
)

LOAD_BATCH = 500
"""Users sent in one pipeline of a bulk load."""
LOAD_TIMEOUT_S = 10.0
"""A bulk load is no request; it may wait longer than one."""
DROP = """
if redis.call("GET", KEYS[1]) == ARGV[1] and redis.call("EXISTS", KEYS[3]) == 0 then
    redis.call("DEL", KEYS[1], KEYS[2])
end
"""
"""Drops a user whose profile is still what was read and who has no live events, in one step on the server."""


class RedisStore:
    """User rows on a server.

    Args:
        namespace: sets this dataset's keys apart from others on the server.
        clock: seconds since 1970 UTC.
    Raises:
        ConfigError: ``store.redis_url`` is no URL of a server.

    Every method raises Unavailable within about ``settings.timeout_ms`` when the server does not answer.
    """

    def __init__(self, settings: StoreSettings, namespace: str, clock: Callable[[], float] = time.time):
        self._limit, self._clock, self._url = settings.history_limit, clock, settings.redis_url
        self._ttl_ms = None if settings.ttl_s is None else max(1, round(settings.ttl_s * 1000))
        self._prefix = f"recpool:{namespace}:".encode()
        # An event that is sent twice is dropped on reading.
        self._client = connect(settings.redis_url, settings.timeout_ms / 1000, "store.redis_url")

    def fetch(self, user_ids: Sequence[str]) -> list[UserRecord | None]:
        """Rows in the order asked, None for a user that is absent or expired; one round trip."""
        keys = [self._keys(user_id) for user_id in user_ids]
        if not keys:
            return []
        with self._answering(), self._client.pipeline(transaction=False) as pipeline:
            for profile, base, live in keys:
                pipeline.mget(profile, base)
                pipeline.lrange(live, 0, self._limit - 1)
            replies = pipeline.execute()
        rows = zip(user_ids, replies[::2], replies[1::2], strict=True)
        return [self._as_record(user_id, profile, base, live) for user_id, (profile, base), live in rows]

    def record(self, user_id: str, events: Sequence[UserEvent]) -> None:
        """Add events, oldest first; visible to every process when the call returns."""
        self.record_many({user_id: events})

    def record_many(self, events: Mapping[str, Sequence[UserEvent]]) -> None:
        """Add events of many users in one transaction and one round trip: all or none of them."""
        now_s = self._clock()
        added = [(self._keys(user_id), History.of(of_user, now_s)) for user_id, of_user in events.items()]
        with self._answering(), self._client.pipeline(transaction=True) as pipeline:
            for (profile, base, live), newer in added:
                pipeline.set(profile, encode({"features": {}, "updated_at_s": now_s}), nx=True)
                if newer.items:
                    newest_first = zip(*newer.columns(), strict=True)
                    pipeline.lpush(live, *[encode(event) for event in newest_first][::-1])
                    pipeline.ltrim(live, 0, self._limit - 1)
                self._touch(pipeline, profile, base, live)
            pipeline.execute()

    def put(self, user_id: str, features: Mapping[str, Any]) -> None:
        """Replace the profile; the history stays."""
        keys = self._keys(user_id)
        row = encode({"features": dict(features), "updated_at_s": self._clock()})
        with self._answering(), self._client.pipeline(transaction=True) as pipeline:
            pipeline.set(keys[0], row)
            self._touch(pipeline, *keys)
            pipeline.execute()

    def load(self, dataset: Dataset, progress: Callable[[float], None] | None = None) -> int:
        """Write every user of a dataset, then drop left-over ones; returns the users' number.

        May be repeated, also while serving: profiles and base histories are replaced, live events
        kept. A load that was cut short leaves whole rows only.
        """
        rows, done, began_s = load_rows(dataset, self._limit), 0, self._clock()
        client = connect(self._url, LOAD_TIMEOUT_S, "store.redis_url")
        try:
            while batch := list(islice(rows, LOAD_BATCH)):
                with self._answering(), client.pipeline(transaction=True) as pipeline:
                    for user_id, features, history in batch:
                        self._load_row(pipeline, user_id, features, history, began_s)
                    pipeline.execute()
                done += len(batch)
                if progress:
                    progress(done / len(dataset.users))
            self._sweep(client, began_s)
        finally:
            client.close()
        return done

    def close(self) -> None:
        """Let go of the connections; closing twice is harmless."""
        self._client.close()

    def _load_row(
        self, pipeline: Any, user_id: str, features: Mapping[str, Any], history: History, began_s: float
    ) -> None:
        profile, base, live = self._keys(user_id)
        row = {"features": features, "updated_at_s": self._clock(), "loaded_at_s": began_s}
        pipeline.set(profile, encode(row))
        pipeline.set(base, encode(history.columns()))
        self._touch(pipeline, profile, base, live)

    def _sweep(self, client: redis.Redis, began_s: float) -> None:
        """Drop users left over from before the load that began at ``began_s``; what expires the server drops."""
        start = self._prefix + b"profile:"
        with self._answering():
            found = client.scan_iter(re.sub(rb"([*?\[\]\\])", rb"\\\1", start) + b"*", count=LOAD_BATCH)
            while profiles := list(islice(found, LOAD_BATCH)):
                rows = zip(profiles, client.mget(profiles), strict=True)
                with client.pipeline(transaction=False) as pipeline:
                    for profile, raw in rows:
                        if raw and is_left_over(orjson.loads(raw), began_s):
                            keys = self._keys(profile.removeprefix(start).decode())
                            pipeline.eval(DROP, len(keys), *keys, raw)
                    pipeline.execute()

    def _touch(self, pipeline: Any, *keys: bytes) -> None:
        for key in keys if self._ttl_ms else ():
            pipeline.pexpire(key, self._ttl_ms)

    def _keys(self, user_id: str) -> tuple[bytes, bytes, bytes]:
        key = user_key(user_id)
        return self._prefix + b"profile:" + key, self._prefix + b"base:" + key, self._prefix + b"live:" + key

    def _as_record(
        self, user_id: str, profile: bytes | None, base: bytes | None, live: list[bytes]
    ) -> UserRecord | None:
        if profile is None:
            return None
        row = orjson.loads(profile)
        older = History(*orjson.loads(base)) if base else History.empty()
        newer = History(*map(list, zip(*map(orjson.loads, live), strict=True))) if live else History.empty()
        return user_record(user_id, row["features"], merge(newer, older, self._limit), row["updated_at_s"])

    def _answering(self) -> AbstractContextManager[None]:
        return answering("feature store", self._url)
