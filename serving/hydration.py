"""The features stage: user rows and histories from the store, encoded as one batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from configs.errors import Unavailable
from configs.settings import StoreSettings
from features.encoding import FIRST_KNOWN, UNKNOWN, Encoder, UserBatch
from features.schema import USER_ID
from features.store import FeatureStore, UserRecord
from serving.preparation import Row

STAGE = "features"
_NO_HASHES, _NO_VALUES = np.zeros(0, np.uint64), np.zeros(0, np.float64)


@dataclass(frozen=True)
class Hydrated:
    """Encoded users and, per row, the item indices [n] int32 the user has interacted with."""

    users: UserBatch
    seen: list[np.ndarray]


class Hydrator:
    """Reads the store once per batch. A user that is absent, or a store that is down or late, is
    imputed and flagged, never raised.

    Args:
        executor: threads that wait for the store; None for one that answers at once, from memory.
    """

    def __init__(self, store: FeatureStore, encoder: Encoder, settings: StoreSettings, executor: Executor | None):
        self._store = store
        self._encoder = encoder
        self._settings = settings
        self._executor = executor
        # Made here rather than for the first request, which would wait for it.
        self._index = encoder.items_by_hash

    async def hydrate(self, rows: Sequence[Row], now_s: float) -> Hydrated:
        """Encode rows [B]; ``now_s`` in seconds since 1970 decides what is stale."""
        records = await self._fetch(rows)
        fields = [self._fields(row, record, now_s) for row, record in zip(rows, records, strict=True)]
        past = self._past(records)
        values = [record.values if record else _NO_VALUES for record in records]
        histories = map(_with_seeds, rows, past, values)
        history, signal = self._encoder.encode_histories(*zip(*map(self._trained, histories), strict=True))
        users = self._encoder.encode_users(fields).with_history(history, signal)
        return Hydrated(users, [items[items >= FIRST_KNOWN] for items in past])

    def _trained(self, history: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
        """Items and values without those that came after the release: its models have no place for them."""
        items, values = history
        if items.max(initial=0) < self._encoder.item_rows:
            return history
        return np.where(items < self._encoder.item_rows, items, UNKNOWN), values

    def _past(self, records: Sequence[UserRecord | None]) -> list[np.ndarray]:
        """Item indices [n] of each user's history; one look-up for the whole batch."""
        hashes = [record.item_hashes if record else _NO_HASHES for record in records]
        ends = list(accumulate(map(len, hashes)))
        found = self._index.rows(np.concatenate(hashes))
        return [found[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    async def _fetch(self, rows: Sequence[Row]) -> list[UserRecord | None]:
        """The stored row of each named user; None, flagged, where there is none to be had."""
        named = {row.user_id: None for row in rows if row.user_id is not None}
        missing, records = "user_unknown", {}
        if named:
            try:
                records = dict(zip(named, await self._ask(list(named)), strict=True))
            except TimeoutError:
                missing = "store_timeout"
            except Unavailable:
                missing = "store_unavailable"
        for row in rows:
            if row.user_id is not None and records.get(row.user_id) is None:
                row.trace.degrade(STAGE, missing)
        return [None if row.user_id is None else records.get(row.user_id) for row in rows]

    async def _ask(self, user_ids: list[str]) -> list[UserRecord | None]:
        if self._executor is None:
            return self._store.fetch(user_ids)
        call = asyncio.get_running_loop().run_in_executor(self._executor, self._store.fetch, user_ids)
        return await asyncio.wait_for(call, self._settings.timeout_ms / 1000)

    def _fields(self, row: Row, record: UserRecord | None, now_s: float) -> dict:
        stored, unreadable = self._encoder.readable(record.features) if record else ({}, ())
        if unreadable:
            row.trace.degrade(STAGE, "profile_unreadable")
        if record and record.is_stale(now_s, self._settings.stale_after_s):
            row.trace.degrade(STAGE, "profile_stale")
            stored = {}
        row.profile = {**stored, **row.features}
        return {**row.profile, USER_ID: row.user_id}


def _with_seeds(row: Row, items: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The row's history; seeds stand in front as liked items: a missing value counts as positive."""
    if not len(row.seeds):
        return items, values
    return np.concatenate([row.seeds, items]), np.concatenate([np.full(len(row.seeds), np.nan), values])
