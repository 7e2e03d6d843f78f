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
from features.encoding import UNKNOWN, UserBatch
from ranking.objectives import RECALL, Weighting
from serving.degradation import StageCosts
from serving.hydration import STAGE as FEATURES
from serving.hydration import Hydrated, Hydrator
from serving.post import STAGE as POST
from serving.post import choose_slates
from serving.preparation import Row
from serving.quality import FEWER_CANDIDATES, SKIPPED
from serving.ranked import Ranked
from serving.release import Release
from serving.stages import InPlace
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
        _check_caps(release, ranking)
        self.release = release
        self._stages = stages
        self._hydrator = hydrator
        self._recall = recall
        self._ranking = ranking
        weights: dict[str, float] = {**ranking.weights}
        self._own = Weighting.of(release.objectives, weights)
        self._with_recall = Weighting.of((RECALL, *release.objectives), weights)
        self._clock = clock
        self._wall = wall
        self._costs = StageCosts()

    async def recommend(self, rows: Sequence[Row]) -> list[Slate]:
        """The best items of the catalogue for each row, inside each row's deadline."""
        now_s = self._wall()
        hydrated = await self._hydrated(rows, now_s)
        excluded = _padded(
            [
                (row.excluded, seen) if row.exclude_seen else (row.excluded,)
                for row, seen in zip(rows, hydrated.seen, strict=True)
            ]
        )
        query = RecallQuery(self.release.version, hydrated.users, excluded, tuple(row.filter for row in rows), now_s)
        found = await self._recall_or_popular(rows, query)
        coarse = await self._rank("coarse", rows, hydrated.users, found.items)
        ranked = _in_order(Ranked.recalled(found), coarse, self._with_recall)
        fine = await self._rank("fine", rows, hydrated.users, ranked.items[:, : self._ranking.coarse_keep])
        return self._slates(rows, _in_order(ranked, fine, self._with_recall), excluded, now_s)

    async def rank(self, rows: Sequence[Row]) -> list[Slate]:
        """Each row's own items, best first; all of them are returned."""
        hydrated = await self._hydrated(rows, self._wall())
        items = _padded([(row.items,) for row in rows])
        objectives = await self._rank("fine", rows, hydrated.users, items)
        if objectives is None:
            objectives = await self._rank("coarse", rows, hydrated.users, items)
        ranked = _in_order(Ranked.given(items), objectives, self._own)
        chosen = ranked.rows(ranked.items > 0, [row.k for row in rows])
        return [own.slate(row.trace) for row, own in zip(rows, chosen, strict=True)]

    async def similar(self, rows: Sequence[Row]) -> list[Slate]:
        """Items like each row's seeds."""
        now_s = self._wall()
        excluded = _padded([(row.excluded,) for row in rows])
        query = SimilarQuery(
            self.release.version,
            _padded([(row.seeds,) for row in rows]),
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
            own = Ranked.given(row.items[None, :])
            return own.rows(own.items > 0, [row.k])[0].slate(row.trace)
        found = self.release.popular_candidates(1, self._recall.candidates)
        return self._slates([row], Ranked.recalled(found), row.excluded[None], self._wall())[0]

    async def _recall_or_popular(self, rows: Sequence[Row], query: RecallQuery | SimilarQuery) -> Candidates:
        found = await self._call("recall", rows, query) if "recall" in self._stages else None
        if found is None:
            return self.release.popular_candidates(len(rows), self._recall.candidates)
        parts = {f"recall.{part}": round(took_ms, 3) for part, took_ms in found.timings_ms.items()}
        counts = (found.items > 0).sum(1).tolist()
        for row, count in zip(rows, counts, strict=True):
            row.trace.counts["recall"] = count
            row.trace.timings_ms.update(parts)
            for source, reason in found.failed:
                row.trace.degrade(f"recall.{source}", reason)
        known = len(self.release.catalogue)
        # Recall elsewhere may have heard of an item before this process did.
        return (
            found
            if found.items.max(initial=0) < known
            else replace(found, items=np.where(found.items < known, found.items, UNKNOWN))
        )

    async def _rank(self, stage: str, rows: Sequence[Row], users: UserBatch, items: np.ndarray) -> np.ndarray | None:
        """Objectives [B, C', O] of the candidates each row has time for, NaN elsewhere; None when no row has any."""
        # Padding is behind everything else: a row that begins with it has no candidates.
        if stage not in self._stages or not items[:, :1].any():
            return None
        now_s, candidates = self._clock(), items.shape[1]
        fitting = [self._affordable(stage, row, candidates, len(rows), now_s) for row in rows]
        waiting = [row for row, count in zip(rows, fitting, strict=True) if count]
        if not waiting:
            return None
        asked = np.ascontiguousarray(items[:, : max(fitting)])
        if len(set(fitting)) > 1:
            asked = np.where(np.arange(max(fitting)) < np.array(fitting)[:, None], asked, 0)
        started = self._clock()
        answer = await self._call(stage, waiting, RankQuery(self.release.version, users, asked))
        if answer is not None:
            self._costs.observe(stage, sum(fitting), (self._clock() - started) * 1000)
        return answer

    def _affordable(self, stage: str, row: Row, candidates: int, rows: int, now_s: float) -> int:
        """How many candidates the row's limits allow and its deadline leaves time for; noted when not all of them."""
        allowed = row.limits.share_of(candidates) if stage in row.limits.stages else 0
        if allowed < candidates:
            row.trace.degrade(stage, FEWER_CANDIDATES if allowed else SKIPPED)
        remaining_ms = (row.deadline_s - now_s) * 1000
        fitting = self._costs.affordable(stage, allowed, rows, remaining_ms) if allowed else 0
        if fitting < allowed:
            row.trace.degrade(stage, "fewer_candidates" if fitting else "skipped_for_deadline")
        row.trace.counts[stage] = fitting
        return fitting

    async def _call(self, stage: str, rows: Sequence[Row], query: Any) -> Any | None:
        """A stage's answer, or None when it failed or was late; never raises for the stage's sake.

        The most patient row decides how long it may take: whoever waits for a more hurried one answers
        it without. What is left of the time after that is for the stages behind this one.
        """
        timeout_s = (max(row.deadline_s for row in rows) - self._clock()) * STAGE_SHARE
        try:
            if timeout_s <= 0:
                raise TimeoutError
            caller, started = self._stages[stage], self._clock()
            try:
                if isinstance(caller, InPlace):
                    return caller.stage(query)
                async with asyncio.timeout(timeout_s):
                    return await caller(query, timeout_s)
            finally:
                self._note_time(stage, rows, started)
        except TimeoutError:
            self._degrade(rows, stage, "timeout")
            return None
        except Exception as error:  # an engine or a handle may raise anything; the request outlives it
            log.warning("stage %s failed", stage, exc_info=error)
            self._degrade(rows, stage, type(error).__name__ if isinstance(error, RecpoolError) else "failed")
            return None

    async def _hydrated(self, rows: Sequence[Row], now_s: float) -> Hydrated:
        started = self._clock()
        hydrated = await self._hydrator.hydrate(rows, now_s)
        self._note_time(FEATURES, rows, started)
        return hydrated

    def _slates(self, rows: Sequence[Row], ranked: Ranked, excluded: np.ndarray, now_s: float) -> list[Slate]:
        started = self._clock()
        slates = choose_slates(rows, ranked, excluded, self.release, self._ranking, now_s)
        self._note_time(POST, rows, started)
        return slates

    def _note_time(self, stage: str, rows: Sequence[Row], started: float) -> None:
        took_ms = round((self._clock() - started) * 1000, 3)
        for row in rows:
            row.trace.timings_ms[stage] = took_ms

    @staticmethod
    def _degrade(rows: Sequence[Row], stage: str, reason: str) -> None:
        for row in rows:
            row.trace.degrade(stage, reason)


def _in_order(ranked: Ranked, objectives: np.ndarray | None, weighting: Weighting) -> Ranked:
    """Candidates by the stage's weighted objectives; without them the order stays."""
    return ranked if objectives is None else ranked.reordered(objectives, weighting)


def _check_caps(release: Release, ranking: RankingSettings) -> None:
    """Raise ConfigError when caps do not fit the release, before a request meets them."""
    unknown = sorted(set(ranking.caps) - set(release.catalogue.fields))
    if unknown:
        known = list(release.catalogue.fields)
        raise ConfigError(
            f"ranking.caps names {unknown}, which release {release.version} lacks; its item fields: {known}"
        )


def _padded(rows: Sequence[tuple[np.ndarray, ...]]) -> np.ndarray:
    """Each row's lists one behind the other, [B, max n] int32, padded with 0."""
    out = np.zeros((len(rows), max((sum(map(len, lists)) for lists in rows), default=0)), np.int32)
    for row, lists in enumerate(rows):
        end = 0
        for values in lists:
            start, end = end, end + len(values)
            out[row, start:end] = values
    return out
