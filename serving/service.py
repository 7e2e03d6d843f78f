"""The service: one live release with its cascade, swapped whole, and the routes' work as plain methods."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from configs.errors import DeadlineExceeded, OfflineError, RecpoolError, Unavailable
from configs.settings import STAGES, Settings
from features.background_writer import BackgroundWriter
from features.event_log import SqliteEventLog
from features.store import open_store
from pool.policy.latency import BatchTime
from pool.repository import ReleaseRepository
from serving.admission import Admission
from serving.cascade import Cascade
from serving.coalescing import Coalescer, Work
from serving.hydration import Hydrator
from serving.idempotency import recommendation_id
from serving.lanes import Gate, Lanes, RunBatch
from serving.preparation import Row, prepare_rank, prepare_recommend, prepare_similar
from serving.priority import Priority
from serving.quality import LADDER, POPULAR, Limits, QualityController
from serving.release import Release
from serving.replies import build_reply, impression
from serving.schemas import NO_HEADERS, CallHeaders, RankRequest, RecommendRequest, SimilarRequest
from serving.stages import InPlace, load_stage, on_thread, stage_threads
from serving.types import Slate, StageCaller
from serving.warming import sample_users, warm_up

log = logging.getLogger("recpool.service")

REPLY_RESERVE_MS = 3.0
"""Kept back from every deadline for building and sending the reply."""
LATENCIES_KEPT = 2_048
FILTERED_IN_PLACE = 20_000
"""Items up to which a filter is worked out sooner than a thread is found for it."""


class _Live:
    """A release being served: its cascade, and the kinds of work it does.

    Args:
        place: makes a kind of work run where it should.
    """

    def __init__(self, release: Release, cascade: Cascade, place: Callable[[RunBatch], RunBatch]):
        self.release = release
        self.cascade = cascade
        self.recommend = Work("recommend", place(cascade.recommend))
        self.rank = Work("rank", place(cascade.rank))
        self.similar = Work("similar", place(cascade.similar))


class _Terms(NamedTuple):
    """On which a request is served: until when, before whom, and what may be spent on it."""

    deadline_s: float
    priority: Priority
    limits: Limits


class Service:
    """Everything a gateway replica does, without HTTP and without Ray.

    Args:
        stages: callers of the stages that run elsewhere; the others run here.
        tiers: the tier of each stage; cpu for one that is not in it.
    """

    def __init__(
        self,
        settings: Settings,
        stages: Mapping[str, StageCaller] | None = None,
        tiers: Mapping[str, str] | None = None,
    ):
        self._settings = settings
        self._remote = dict(stages or {})
        self._tiers = {name: (tiers or {}).get(name, "cpu") for name in STAGES}
        self._repository = ReleaseRepository(settings.releases_folder)
        self._executor = stage_threads(settings.ranking.threads)
        # A stage elsewhere is awaited on the loop that its handle belongs to.
        self._all_here = not self._remote
        self._lanes = Lanes(settings.serving.lanes, settings.ranking.threads or 1)
        self._store = open_store(settings.store, settings.store_folder)
        self._impressions = _open_impressions(settings)
        serving = settings.serving
        self._quality = QualityController(settings.overload)
        self._admission = Admission(settings.overload, serving.max_batch_rows, serving.lanes, self._quality)
        self._queue = Coalescer(self._admission, serving.lanes)
        self._live: _Live | None = None
        self._why_not_ready = "no release is loaded yet"
        self._started_s = time.time()
        self._counts = {"requests": 0, "degraded": 0, "errors": 0}
        self._unlogged = 0
        self._latencies: deque[tuple[float, float]] = deque(maxlen=LATENCIES_KEPT)

    @property
    def ready(self) -> bool:
        return self._live is not None

    @property
    def version(self) -> str | None:
        """Of the live release."""
        return self._live.release.version if self._live else None

    @property
    def why_not_ready(self) -> str | None:
        return None if self.ready else self._why_not_ready

    def pass_gate(self, gate: Gate | None) -> None:
        """Compute behind the gate of a device from here on; without one, or where stages are elsewhere, freely."""
        self._lanes.pass_gate(gate)

    def latencies_ms(self, over_s: float) -> list[float]:
        """Of the requests answered within the last seconds, from their arrival; in order, at most 2,048."""
        since_s = time.monotonic() - over_s
        return [took_ms for at_s, took_ms in tuple(self._latencies) if at_s >= since_s]

    @property
    def queue(self) -> int:
        """Requests that wait for a batch."""
        return self._admission.waiting

    def batch_times(self) -> tuple[BatchTime, ...]:
        """What batches of recommendations took lately, by their rows; none where stages run elsewhere."""
        return self._admission.times("recommend").summary() if self._all_here else ()

    async def start(self) -> None:
        """Load the champion. With none published the service starts all the same and says it is not ready."""
        with contextlib.suppress(RecpoolError):
            await self.load(None)

    async def load(self, version: str | None, warm: bool = False) -> str:
        """Make a version (None: the champion) the live one; the running one stays when this fails.

        Args:
            warm: let it answer requests of our own first, so that the first caller waits no longer than others.
        Raises:
            NotFound, ArtifactError: as `Release.load`; Unavailable: nothing was ever promoted.
        """
        try:
            version = version or self._repository.champion()
            if version is None:
                raise Unavailable("no release has been promoted; run `recpool train`")
            if self._live is None or self._live.release.version != version:
                live = await asyncio.get_running_loop().run_in_executor(self._executor, self._build, version)
                if warm:
                    await warm_up(live.recommend.run, live.release, self._settings.serving, beside=self.ready)
                self._live = live
        except RecpoolError as error:
            log.error("release %s not loaded: %s", version or "(champion)", error.message)
            # What names files is for the log; anyone may ask for the reason.
            vague = isinstance(error, OfflineError)
            self._why_not_ready = "the release cannot be loaded; the log says why" if vague else error.message
            raise
        return version

    def sample_users(self, count: int) -> list[str]:
        """Users that the live release knows; none without one."""
        return sample_users(self._live.release, count) if self._live else []

    def _build(self, version: str) -> _Live:
        release = Release.load(self._repository, version)
        settings = self._settings
        stages = {name: self._remote.get(name) or self._local_stage(name, release) for name in STAGES}
        # What is mapped into memory is read in place; a server's answer is waited for on a thread.
        threads = None if settings.store.kind == "embedded" else self._executor
        hydrator = Hydrator(self._store, release.encoder, settings.store, threads)
        cascade = Cascade(release, stages, hydrator, settings.recall, settings.ranking)
        return _Live(release, cascade, self._lanes.on_lane if self._all_here else _in_loop)

    def _local_stage(self, name: str, release: Release) -> StageCaller:
        stage = load_stage(name, release, self._settings, self._executor, self._tiers[name])
        return InPlace(stage) if self._all_here else on_thread(stage, self._executor)

    async def close(self) -> None:
        if self._impressions is not None:
            self._impressions.close()
        self._lanes.close()
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._store.close()

    async def recommend(self, request: RecommendRequest, headers: CallHeaders = NO_HEADERS) -> dict[str, Any]:
        """Reply to a recommend request; see `serving.schemas.Reply`.

        Raises:
            InvalidRequest: a field is wrong. Unavailable: not ready. Overloaded: too busy to answer in time.
        """
        started, live = _arrival_s(headers), self._require_live()
        default_k = self._settings.serving.default_k
        terms = self._admit(live.recommend, request, headers.priority, started)
        row = await self._prepare(prepare_recommend, request, live.release, terms, default_k)
        own_id = recommendation_id(headers.idempotency_key, request.user_id, request.scene, request.cursor)
        reply = await self._answer(own_id, live, live.recommend, row, started, request.debug)
        if not request.dry_run:
            self._log(impression(reply, row, request.scene, time.time()))
        return reply

    async def rank(self, request: RankRequest, headers: CallHeaders = NO_HEADERS) -> dict[str, Any]:
        """Order the caller's own items; unknown ones come last, without a score."""
        started, live = _arrival_s(headers), self._require_live()
        terms = self._admit(live.rank, request, headers.priority, started)
        row = await self._prepare(prepare_rank, request, live.release, terms)
        own_id = recommendation_id(None)
        return await self._answer(own_id, live, live.rank, row, started, request.debug)

    async def similar(self, request: SimilarRequest, headers: CallHeaders = NO_HEADERS) -> dict[str, Any]:
        """Items like the given ones."""
        started, live = _arrival_s(headers), self._require_live()
        default_k = self._settings.serving.default_k
        terms = self._admit(live.similar, request, headers.priority, started)
        row = await self._prepare(prepare_similar, request, live.release, terms, default_k)
        own_id = recommendation_id(None)
        return await self._answer(own_id, live, live.similar, row, started, debug=False)

    def status(self) -> dict[str, Any]:
        """What runs here; see `serving.schemas.Status`."""
        release = self._live.release if self._live else None
        return {
            "ready": self.ready,
            "versions": release.versions if release else {},
            "items": release.manifest.items if release else 0,
            "users": release.manifest.users if release else 0,
            "objectives": list(release.objectives) if release else [],
            "plan": {name: "handle" if name in self._remote else "fused" for name in STAGES},
            "tiers": self._tiers,
            "uptime_s": round(time.time() - self._started_s, 3),
            **self._counts,
            "refused": self._admission.refused.total(),
            "quality_step": self._quality.step,
            "impressions_written": self._impressions.written if self._impressions else 0,
            "impressions_dropped": self._unlogged,
        }

    async def _prepare(
        self, prepare: Callable[..., Row], request: Any, release: Release, terms: _Terms, *more: Any
    ) -> Row:
        """The request's row, on these terms."""
        row = await self._made(prepare, request, release, terms.deadline_s, *more)
        row.priority, row.limits = terms.priority, terms.limits
        return row

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

    def _log(self, record: dict[str, Any]) -> None:
        if self._impressions is None or not self._impressions.submit(record):
            self._unlogged += 1

    def _admit(
        self, work: Work, request: RecommendRequest | RankRequest | SimilarRequest, priority: Priority, started: float
    ) -> _Terms:
        """The terms of a request. Raises Overloaded when it is refused."""
        deadline_s, now_s = self._deadline(request, started), time.monotonic()
        in_time = self._admission.admit(work.kind, priority, deadline_s, started, now_s)
        return _Terms(deadline_s, priority, self._quality.limits(priority, now_s) if in_time else LADDER[-1])

    async def _answer(
        self, own_id: str, live: _Live, work: Work, row: Row, started: float, debug: bool
    ) -> dict[str, Any]:
        """The reply, inside the row's deadline: when the cascade is late or must not be asked, popular items."""
        try:
            slate = await self._slate(live, work, row, started)
            now_s = time.monotonic()
            reply = build_reply(own_id, row, slate, live.release, started, now_s, debug)
        except Exception:
            self._counts["errors"] += 1
            raise
        self._latencies.append((now_s, (now_s - started) * 1000))
        self._counts["requests"] += 1
        self._counts["degraded"] += bool(reply["degraded"])
        return reply

    async def _slate(self, live: _Live, work: Work, row: Row, started: float) -> Slate:
        if not row.limits.stages:
            return live.cascade.fallback(row, POPULAR)
        try:
            return await self._queue.submit(row, work, started)
        except (TimeoutError, DeadlineExceeded):
            return live.cascade.fallback(row)

    def _require_live(self) -> _Live:
        if self._live is None:
            raise Unavailable(f"not ready: {self._why_not_ready}")
        return self._live

    def _deadline(self, request: RecommendRequest | RankRequest | SimilarRequest, started: float) -> float:
        timeout_ms = request.timeout_ms or self._settings.serving.default_timeout_ms
        return started + (timeout_ms - REPLY_RESERVE_MS) / 1000


def _in_loop(run: RunBatch) -> RunBatch:
    return run


def _arrival_s(headers: CallHeaders) -> float:
    """When the call reached the service, its proxy included, on the monotonic clock."""
    return time.monotonic() - headers.waited_s(time.time())


def _open_impressions(settings: Settings) -> BackgroundWriter | None:
    """The log of impressions; without one the service still answers, and counts what it could not keep."""
    try:
        return BackgroundWriter(SqliteEventLog(settings.event_log_file))
    except Unavailable as error:
        log.error("impressions are not kept: %s", error.message)
        return None
