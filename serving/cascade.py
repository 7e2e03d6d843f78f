"""The funnel as plain Python: features → recall → coarse rank → fine rank → post-processing.

It works on batches of requests. Stages are callables (`serving.types.StageCaller`): a local
implementation or a handle to another process; the cascade does not know which. A stage that fails
or would come late is done without and named in the reply; see `serving.degradation` for the order
in which quality is given up.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from configs.errors import ConfigError, RecpoolError
from configs.settings import RankingSettings, RecallSettings
from features.encoding import UserBatch
from ranking.objectives import combine
from serving.degradation import StageCosts
from serving.hydration import Hydrator
from serving.post import STAGE as POST
from serving.post import choose_slates
from serving.preparation import Row
from serving.quality import FEWER_CANDIDATES, SKIPPED
from serving.ranked import Ranked
from serving.release import Release
from serving.types import Candidates, RankQuery, RecallQuery, SimilarQuery, Slate, StageCaller, Trace

log = logging.getLogger("recpool.cascade")

STAGE_SHARE = 0.7
"""Share of the time left that one stage may take before it is done without."""


class Cascade:
    """One release's funnel.

    Args:
        stages: callers of ``recall``, ``coarse`` and ``fine``; the cascade does without those it lacks.
        clock: monotonic seconds, the scale of `Row.deadline_s`.
        wall: seconds since 1970, for eligibility and staleness.
    """

    def __init__(
        self,
        release: Release,
        stages: Mapping[str, StageCaller],
        hydrator: Hydrator,
        recall: RecallSettings,
        ranking: RankingSettings,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ):
        _check_ranking(release, ranking)
        self.release = release
        self._stages = stages
        self._hydrator = hydrator
        self._recall = recall
        self._ranking = ranking
        self._weights: dict[str, float] = {**ranking.weights}
        self._clock = clock
        self._wall = wall
        self._costs = StageCosts()

    async def recommend(self, rows: Sequence[Row]) -> list[Slate]:
        """The best items of the catalogue for each row, inside each row's deadline."""
        now_s = self._wall()
        hydrated = await self._timed("features", rows, self._hydrator.hydrate(rows, now_s))
        excluded = _padded(
            [
                np.concatenate([row.excluded, seen]) if row.exclude_seen else row.excluded
                for row, seen in zip(rows, hydrated.seen, strict=True)
            ]
        )
        query = RecallQuery(self.release.version, hydrated.users, excluded, tuple(row.filter for row in rows), now_s)
        found = await self._recall_or_popular(rows, query)
        coarse = await self._rank("coarse", rows, hydrated.users, found.items)
        ranked = self._in_order(Ranked.recalled(found), coarse)
        fine = await self._rank("fine", rows, hydrated.users, ranked.items[:, : self._ranking.coarse_keep])
        return self._slates(rows, self._in_order(ranked, fine), excluded, now_s)

    async def rank(self, rows: Sequence[Row]) -> list[Slate]:
        """Each row's own items, best first; all of them are returned."""
        hydrated = await self._timed("features", rows, self._hydrator.hydrate(rows, self._wall()))
        items = _padded([row.items for row in rows])
        objectives = await self._rank("fine", rows, hydrated.users, items)
        if objectives is None:
            objectives = await self._rank("coarse", rows, hydrated.users, items)
        ranked = self._in_order(Ranked.given(items), objectives)
        return [ranked.row(i).slate(row.k, row.trace) for i, row in enumerate(rows)]

    async def similar(self, rows: Sequence[Row]) -> list[Slate]:
        """Items like each row's seeds."""
        now_s = self._wall()
        excluded = _padded([row.excluded for row in rows])
        query = SimilarQuery(
            self.release.version,
            _padded([row.seeds for row in rows]),
            # Not the largest k of the batch: evidence is relative to the list, and must not depend on batch-mates.
            self._recall.candidates,
            excluded,
            tuple(row.filter for row in rows),
            now_s,
        )
        found = await self._recall_or_popular(rows, query)
        # There is no second page: the route takes no cursor.
        return [replace(s, more=False) for s in self._slates(rows, Ranked.recalled(found), excluded, now_s)]

    def fallback(self, row: Row, reason: str = "timeout") -> Slate:
        """What can be said without any stage: the row's own items as given, or popular ones."""
        row = replace(row, trace=Trace())
        row.trace.degrade("cascade", reason)
        if len(row.items):
            return Ranked.given(row.items[None, :]).row(0).slate(row.k, row.trace)
        found = self.release.popular_candidates(1, self._recall.candidates)
        return self._slates([row], Ranked.recalled(found), row.excluded[None], self._wall())[0]

    async def _recall_or_popular(self, rows: Sequence[Row], query: RecallQuery | SimilarQuery) -> Candidates:
        found = await self._call("recall", rows, query) if "recall" in self._stages else None
        if found is None:
            return self.release.popular_candidates(len(rows), self._recall.candidates)
        parts = {f"recall.{part}": round(took_ms, 3) for part, took_ms in found.timings_ms.items()}
        for row, items in zip(rows, found.items, strict=True):
            row.trace.counts["recall"] = int(np.count_nonzero(items))
            row.trace.timings_ms.update(parts)
            for source, reason in found.failed:
                row.trace.degrade(f"recall.{source}", reason)
        return found

    async def _rank(self, stage: str, rows: Sequence[Row], users: UserBatch, items: np.ndarray) -> np.ndarray | None:
        """Objectives [B, C', O] of the candidates each row has time for, NaN elsewhere; None when no row has any."""
        if stage not in self._stages or not items.any():
            return None
        fitting = np.array([self._affordable(stage, row, items.shape[1], len(rows)) for row in rows])
        width = int(fitting.max())
        if width == 0:
            return None
        asked = np.where(np.arange(width) < fitting[:, None], items[:, :width], 0)
        waiting = [row for row, count in zip(rows, fitting, strict=True) if count]
        started = self._clock()
        answer = await self._call(stage, waiting, RankQuery(self.release.version, users, asked))
        if answer is not None:
            self._costs.observe(stage, int(fitting.sum()), (self._clock() - started) * 1000)
        return answer

    def _affordable(self, stage: str, row: Row, candidates: int, rows: int) -> int:
        """How many candidates the row's limits allow and its deadline leaves time for; noted when not all of them."""
        allowed = row.limits.share_of(candidates) if stage in row.limits.stages else 0
        if allowed < candidates:
            row.trace.degrade(stage, FEWER_CANDIDATES if allowed else SKIPPED)
        fitting = self._costs.affordable(stage, allowed, rows, self._remaining_ms(row)) if allowed else 0
        if fitting < allowed:
            row.trace.degrade(stage, "fewer_candidates" if fitting else "skipped_for_deadline")
        row.trace.counts[stage] = fitting
        return fitting

    async def _call(self, stage: str, rows: Sequence[Row], query: Any) -> Any | None:
        """A stage's answer, or None when it failed or was late; never raises for the stage's sake.

        The most patient row decides how long it may take: whoever waits for a more hurried one answers
        it without. What is left of the time after that is for the stages behind this one.
        """
        left_s = max(map(self._remaining_ms, rows)) / 1000
        timeout_s = left_s * STAGE_SHARE
        try:
            if timeout_s <= 0:
                raise TimeoutError
            async with asyncio.timeout(timeout_s):
                return await self._timed(stage, rows, self._stages[stage](query, timeout_s))
        except TimeoutError:
            self._degrade(rows, stage, "timeout")
            return None
        except Exception as error:  # an engine or a handle may raise anything; the request outlives it
            log.warning("stage %s failed", stage, exc_info=error)
            self._degrade(rows, stage, type(error).__name__ if isinstance(error, RecpoolError) else "failed")
            return None

    async def _timed(self, stage: str, rows: Sequence[Row], work: Any) -> Any:
        started = self._clock()
        try:
            return await work
        finally:
            took_ms = (self._clock() - started) * 1000
            for row in rows:
                row.trace.timings_ms[stage] = round(took_ms, 3)

    def _in_order(self, ranked: Ranked, objectives: np.ndarray | None) -> Ranked:
        """Candidates by the stage's weighted objectives; without them the order stays."""
        if objectives is None:
            return ranked
        return ranked.reordered(objectives, self.release.objectives, self._weights)

    def _slates(self, rows: Sequence[Row], ranked: Ranked, excluded: np.ndarray, now_s: float) -> list[Slate]:
        started = self._clock()
        slates = choose_slates(rows, ranked, excluded, self.release, self._ranking, now_s)
        for row in rows:
            row.trace.timings_ms[POST] = round((self._clock() - started) * 1000, 3)
        return slates

    def _remaining_ms(self, row: Row) -> float:
        return (row.deadline_s - self._clock()) * 1000

    @staticmethod
    def _degrade(rows: Sequence[Row], stage: str, reason: str) -> None:
        for row in rows:
            row.trace.degrade(stage, reason)


def _check_ranking(release: Release, ranking: RankingSettings) -> None:
    """Raise ConfigError when weights or caps do not fit the release, before a request meets them."""
    probe = np.zeros((0, len(release.objectives)), np.float32)
    combine(probe, release.objectives, {**ranking.weights})
    unknown = sorted(set(ranking.caps) - set(release.catalogue.fields))
    if unknown:
        known = list(release.catalogue.fields)
        raise ConfigError(
            f"ranking.caps names {unknown}, which release {release.version} lacks; its item fields: {known}"
        )


def _padded(lists: Sequence[np.ndarray]) -> np.ndarray:
    """[B, max n] int32, padded with 0."""
    out = np.zeros((len(lists), max((len(x) for x in lists), default=0)), np.int32)
    for row, values in enumerate(lists):
        out[row, : len(values)] = values
    return out
