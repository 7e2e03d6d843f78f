"""From a request to the reply of one part of the traffic: its terms, its row, its slate; and how it went, counted."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from concurrent.futures import Executor
from typing import Any, NamedTuple

from configs.errors import DeadlineExceeded, InvalidRequest, Overloaded
from configs.settings import Settings
from serving.coalescing import Work
from serving.experiments.division import Division, Part, is_broken, is_empty
from serving.idempotency import recommendation_id
from serving.preparation import Row, prepare_recommend
from serving.priority import Priority
from serving.quality import LADDER, POPULAR, Limits
from serving.release import Release
from serving.replies import build_reply
from serving.schemas import CallHeaders, RankRequest, RecommendRequest, SimilarRequest
from serving.types import Slate

log = logging.getLogger("recpool.service")

REPLY_RESERVE_MS = 3.0
"""Kept back from every deadline for building and sending the reply."""
CHALLENGER_SHARE = 0.6
"""Of a request's time that a challenger may take; the rest is the champion's, should it have no good answer."""
FILTERED_IN_PLACE = 20_000
"""Items up to which a filter is worked out sooner than a thread is found for it."""


class Terms(NamedTuple):
    """On which a request is served: until when, before whom, and what may be spent on it."""

    deadline_s: float
    priority: Priority
    limits: Limits


class Asked(NamedTuple):
    """A call.

    Attributes:
        id: of the recommendation.
        started_s: when it reached the service, on the monotonic clock.
        time_share: of its time that the answer may take.
    """

    id: str
    request: RecommendRequest | RankRequest | SimilarRequest
    priority: Priority
    started_s: float
    time_share: float = 1.0
    debug: bool = False


class Answered(NamedTuple):
    """A reply with what was asked; ``is_good`` unless it is empty, lacks a stage that failed, or is popular items."""

    reply: dict[str, Any]
    row: Row
    is_good: bool


class Answering:
    """Works out the replies of one replica.

    Args:
        executor: threads for what would hold up the loop.
    """

    def __init__(self, settings: Settings, executor: Executor):
        self._settings, self._executor = settings, executor

    async def tried(
        self, division: Division, part: Part, request: RecommendRequest, headers: CallHeaders, started: float
    ) -> Answered | None:
        """The challenger's answer; None when it has none that is worth giving, and the champion is to be asked."""
        try:
            answered = await self.recommended(division, part, request, headers, started, CHALLENGER_SHARE)
        except Overloaded:
            return None
        except Exception as error:  # whatever a new release may raise; it is counted, and costs the caller only time
            log.warning("release %s did not answer", part.live.version, exc_info=error)
            return None
        return answered if answered.is_good else None

    async def recommended(
        self,
        division: Division,
        part: Part,
        request: RecommendRequest,
        headers: CallHeaders,
        started: float,
        time_share: float = 1.0,
    ) -> Answered:
        """The answer of a part of the traffic, counted for its release.

        Args:
            time_share: of the request's time that it may take.
        """
        tally = division.tally(part)
        own_id = recommendation_id(headers.idempotency_key, request.user_id, request.scene, request.cursor)
        asked = Asked(own_id, request, headers.priority, started, time_share, request.debug)
        try:
            reply, row = await self.answer(
                asked, part, part.funnel.recommend, prepare_recommend, self._settings.serving.default_k
            )
        except (InvalidRequest, DeadlineExceeded):
            raise
        except Exception as error:
            tally.refuse() if isinstance(error, Overloaded) else tally.error()
            raise
        empty, broken = is_empty(reply, request.filter is not None), is_broken(reply["degraded"])
        shed = not row.limits.stages
        tally.answer((time.monotonic() - started) * 1000, empty, broken, shed)
        return Answered(reply, row, not (empty or broken or shed))

    async def answer(
        self, asked: Asked, part: Part, work: Work, prepare: Callable[..., Row], *more: Any
    ) -> tuple[dict[str, Any], Row]:
        """The reply and the row it was made from, inside the deadline: when the cascade is late, popular items.

        Args:
            prepare: makes the row; ``more`` are its further arguments.
        Raises:
            InvalidRequest: a field is wrong. Overloaded: the desk is too busy to answer in time.
        """
        terms = self._admit(asked, part, work)
        row = await self._made(prepare, asked.request, part.live.release, terms.deadline_s, *more)
        row.priority, row.limits = terms.priority, terms.limits
        slate = await self._slate(part, work, row, asked.started_s)
        now_s = time.monotonic()
        return build_reply(asked.id, row, slate, part.live.release, asked.started_s, now_s, asked.debug), row

    def _admit(self, asked: Asked, part: Part, work: Work) -> Terms:
        """Raises Overloaded when the request is refused."""
        timeout_ms = (asked.request.timeout_ms or self._settings.serving.default_timeout_ms) * asked.time_share
        deadline_s, now_s = asked.started_s + (timeout_ms - REPLY_RESERVE_MS) / 1000, time.monotonic()
        in_time = part.desk.admission.admit(work.kind, asked.priority, deadline_s, asked.started_s, now_s)
        limits = part.desk.quality.limits(asked.priority, now_s) if in_time else LADDER[-1]
        return Terms(deadline_s, asked.priority, limits)

    async def _made(
        self, prepare: Callable[..., Row], request: Any, release: Release, deadline_s: float, *more: Any
    ) -> Row:
        """A filter may take long to work out over a large catalogue, so it goes to a thread."""
        if getattr(request, "filter", None) is None or len(release.catalogue) <= FILTERED_IN_PLACE:
            return prepare(request, release, deadline_s, *more)
        work = asyncio.get_running_loop().run_in_executor(self._executor, prepare, request, release, deadline_s, *more)
        try:
            return await asyncio.wait_for(work, max(0.0, deadline_s - time.monotonic()))
        except TimeoutError:
            raise DeadlineExceeded(
                "filter: could not be worked out before the deadline; send a larger timeout_ms"
            ) from None

    async def _slate(self, part: Part, work: Work, row: Row, started: float) -> Slate:
        if not row.limits.stages:
            return part.funnel.cascade.fallback(row, POPULAR)
        try:
            return await part.desk.queue.submit(row, work, started)
        except (TimeoutError, DeadlineExceeded):
            return part.funnel.cascade.fallback(row)
