"""The features stage: user rows and histories from the store, encoded as one batch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

import numpy as np

from configs.errors import Unavailable
from configs.settings import StoreSettings
from features.encoding import FIRST_KNOWN, Encoder, UserBatch
from features.schema import USER_ID
from features.store import FeatureStore, UserRecord
from serving.preparation import Row

STAGE = "features"
_NOTHING = np.zeros(0, np.int32)


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

    async def hydrate(self, rows: Sequence[Row], now_s: float) -> Hydrated:
        """Encode rows [B]; ``now_s`` in seconds since 1970 decides what is stale."""
        records = await self._fetch(rows)
        fields = [self._fields(row, record, now_s) for row, record in zip(rows, records, strict=True)]
        seen = [self._encoder.item_ids.indices(record.items) if record else _NOTHING for record in records]
        values = [np.asarray(record.values, np.float64) if record else _NOTHING for record in records]
        history, signal = self._encoder.encode_histories(
            *zip(*(_with_seeds(row, *past) for row, *past in zip(rows, seen, values, strict=True)), strict=True)
        )
        # What models spend on a history grows with its padding.
        longest = max(1, int((history > 0).sum(1).max(initial=0)))
        users = self._encoder.encode_users(fields).with_history(history[:, :longest], signal[:, :longest])
        return Hydrated(users, [s[s >= FIRST_KNOWN] for s in seen])

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
