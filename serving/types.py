"""Messages between the gateway and the stages: batches of arrays, picklable, never request by request."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from features.encoding import UserBatch


@dataclass(frozen=True)
class RecallQuery:
    """What recall is asked for a batch of B users.

    Attributes:
        version: the release the indices belong to.
        users: encoded users; their histories include the request's seed items.
        excluded: [B, E] int32 item indices never to return, padded with 0.
        filters: the caller's filter expression per user, or None.
        now_s: seconds since 1970, for the eligibility of items.
    """

    version: str
    users: UserBatch
    excluded: np.ndarray
    filters: tuple[str | None, ...]
    now_s: float


@dataclass(frozen=True)
class SimilarQuery:
    """Items like the seeds [B, S] int32 (padded with 0); the other fields as in `RecallQuery`."""

    version: str
    seeds: np.ndarray
    count: int
    excluded: np.ndarray
    filters: tuple[str | None, ...]
    now_s: float


@dataclass(frozen=True)
class Candidates:
    """What recall found: items [B, C] int32 padded with 0, scores [B, C] float32, sources [B, C] uint8 bitmask.

    ``failed`` names sources that raised or came late, with the reason; their share is missing.
    ``timings_ms`` says what the parts of recall took.
    """

    items: np.ndarray
    scores: np.ndarray
    sources: np.ndarray
    failed: tuple[tuple[str, str], ...] = ()
    timings_ms: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class RankQuery:
    """Score items [B, C] int32 (padded with 0) for users [B]; the answer is objectives [B, C, O] float32."""

    version: str
    users: UserBatch
    items: np.ndarray


LocalStage = Callable[[Any], Any]
"""``stage(query)``, which blocks until it has the answer."""

StageCaller = Callable[[Any, float], Awaitable[Any]]
"""``await caller(query, timeout_s)``; a local implementation or a handle to another process."""


@dataclass
class Trace:
    """What happened to one request on its way; becomes the reply's ``degraded`` and ``debug``."""

    degraded: list[tuple[str, str]] = field(default_factory=list)
    timings_ms: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    removed: dict[str, int] = field(default_factory=dict)

    def degrade(self, stage: str, reason: str) -> None:
        if (stage, reason) not in self.degraded:
            self.degraded.append((stage, reason))


@dataclass(frozen=True)
class Slate:
    """The items chosen for one request, best first.

    items [n] int32, scores [n] float32 (NaN when nothing ranked them), sources [n] uint8,
    objectives [n, O] float32 in the order of ``names``, or None when nothing ranked them. ``more`` says
    whether a next page may hold anything.
    """

    items: np.ndarray
    scores: np.ndarray
    sources: np.ndarray
    objectives: np.ndarray | None
    names: tuple[str, ...]
    more: bool
    trace: Trace
