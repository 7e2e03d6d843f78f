"""The service: one live release with its cascade, swapped whole, and the routes' work as plain methods."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from configs.errors import DeadlineExceeded, OfflineError, RecpoolError, Unavailable
from configs.settings import STAGES, ServingSettings, Settings
from features.background_writer import BackgroundWriter
from features.event_log import SqliteEventLog
from features.store import open_store
from pool.repository import ReleaseRepository
from serving.cascade import Cascade
from serving.coalescing import Coalescer
from serving.hydration import Hydrator
from serving.preparation import Row, prepare_rank, prepare_recommend, prepare_similar
from serving.release import Release
from serving.replies import build_reply, impression
from serving.schemas import RankRequest, RecommendRequest, SimilarRequest
from serving.stages import load_stage, stage_threads
from serving.types import StageCaller

log = logging.getLogger("recpool.service")

REPLY_RESERVE_MS = 3.0
"""Kept back from every deadline for building and sending the reply."""


STAGE_LIMIT_S = 1.0
"""No stage of a healthy service takes longer; a hung one must not hold up everybody for the longest deadline."""


class _Live:
    """A release being served: its cascade, and the queues in front of it, one a kind of request."""

    def __init__(self, release: Release, cascade: Cascade, settings: ServingSettings):
        self.release = release
        self.cascade = cascade
        self.recommend = Coalescer(cascade.recommend, settings.max_batch_rows, settings.lanes)
        self.rank = Coalescer(cascade.rank, settings.max_batch_rows, settings.lanes)
        self.similar = Coalescer(cascade.similar, settings.max_batch_rows, settings.lanes)


class Service:
    """Everything a gateway replica does, without HTTP and without Ray.

    Args:
        stages: callers of the stages that run elsewhere; the others run here.
    """

    def __init__(self, settings: Settings, stages: Mapping[str, StageCaller] | None = None):
        self._settings = settings
        self._remote = dict(stages or {})
        self._repository = ReleaseRepository(settings.releases_folder)
        self._executor = stage_threads(settings.ranking.threads)
        self._store = open_store(settings.store, settings.store_folder)
        self._impressions = _open_impressions(settings)
        self._live: _Live | None = None
        self._why_not_ready = "no release is loaded yet"
        self._started_s = time.time()
        self._counts = {"requests": 0, "degraded": 0, "errors": 0}
        self._unlogged = 0

    @property
    def ready(self) -> bool:
        return self._live is not None

    @property
    def why_not_ready(self) -> str | None:
        return None if self.ready else self._why_not_ready

    async def start(self) -> None:
        """Load the champion. With none published the service starts all the same and says it is not ready."""
        with contextlib.suppress(RecpoolError):
            await self.load(None)

    async def load(self, version: str | None) -> str:
        """Make a version (None: the champion) the live one; the running one stays when this fails.

        Raises:
            NotFound, ArtifactError: as `Release.load`; Unavailable: nothing was ever promoted.
        """
        try:
            version = version or self._repository.champion()
            if version is None:
                raise Unavailable("no release has been promoted; run `recpool train`")
            if self._live is None or self._live.release.version != version:
                self._live = await asyncio.get_running_loop().run_in_executor(self._executor, self._build, version)
        except RecpoolError as error:
            log.error("release %s not loaded: %s", version or "(champion)", error.message)
            # What names files is for the log; anyone may ask for the reason.
            vague = isinstance(error, OfflineError)
            self._why_not_ready = "the release cannot be loaded; the log says why" if vague else error.message
            raise
        return version

    def _build(self, version: str) -> _Live:
        release = Release.load(self._repository, version)
        settings = self._settings
        stages = {
            name: self._remote.get(name) or load_stage(name, release, settings, self._executor) for name in STAGES
        }
        hydrator = Hydrator(self._store, release.encoder, settings.store, self._executor)
        cascade = Cascade(release, stages, hydrator, settings.recall, settings.ranking, STAGE_LIMIT_S)
        return _Live(release, cascade, settings.serving)

    async def close(self) -> None:
        if self._impressions is not None:
            self._impressions.close()
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._store.close()

    async def recommend(self, request: RecommendRequest) -> dict[str, Any]:
        """Reply to a recommend request; see `serving.schemas.Reply`.

        Raises:
            InvalidRequest: a field is wrong. Unavailable: not ready.
        """
        started, live = time.monotonic(), self._require_live()
        default_k = self._settings.serving.default_k
        row = await self._prepare(prepare_recommend, request, live.release, self._deadline(request, started), default_k)
        reply = await self._answer(live, live.recommend, row, started, request.debug)
        if not request.dry_run:
            self._log(impression(reply, row, request.scene, time.time()))
        return reply

    async def rank(self, request: RankRequest) -> dict[str, Any]:
        """Order the caller's own items; unknown ones come last, without a score."""
        started, live = time.monotonic(), self._require_live()
        row = await self._prepare(prepare_rank, request, live.release, self._deadline(request, started))
        return await self._answer(live, live.rank, row, started, request.debug)

    async def similar(self, request: SimilarRequest) -> dict[str, Any]:
        """Items like the given ones."""
        started, live = time.monotonic(), self._require_live()
        default_k = self._settings.serving.default_k
        row = await self._prepare(prepare_similar, request, live.release, self._deadline(request, started), default_k)
        return await self._answer(live, live.similar, row, started, debug=False)

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
            "uptime_s": round(time.time() - self._started_s, 3),
            **self._counts,
            "impressions_written": self._impressions.written if self._impressions else 0,
            "impressions_dropped": self._unlogged,
        }

    async def _prepare(
        self, prepare: Callable[..., Row], request: Any, release: Release, deadline_s: float, *more: Any
    ) -> Row:
        """The request's row. A filter may take long to work out over a large catalogue, so it goes to a thread."""
        if getattr(request, "filter", None) is None:
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

    async def _answer(self, live: _Live, queue: Coalescer, row: Row, started: float, debug: bool) -> dict[str, Any]:
        """The reply, inside the row's deadline: when the cascade is late, popular items."""
        try:
            try:
                slate = await asyncio.wait_for(queue.submit(row), max(0.0, row.deadline_s - time.monotonic()))
            except TimeoutError:
                slate = live.cascade.fallback(row)
            reply = build_reply(row, slate, live.release, started, time.monotonic(), debug)
        except Exception:
            self._counts["errors"] += 1
            raise
        self._counts["requests"] += 1
        self._counts["degraded"] += bool(reply["degraded"])
        return reply

    def _require_live(self) -> _Live:
        if self._live is None:
            raise Unavailable(f"not ready: {self._why_not_ready}")
        return self._live

    def _deadline(self, request: RecommendRequest | RankRequest | SimilarRequest, started: float) -> float:
        timeout_ms = request.timeout_ms or self._settings.serving.default_timeout_ms
        return started + (timeout_ms - REPLY_RESERVE_MS) / 1000


def _open_impressions(settings: Settings) -> BackgroundWriter | None:
    """The log of impressions; without one the service still answers, and counts what it could not keep."""
    try:
        return BackgroundWriter(SqliteEventLog(settings.event_log_file))
    except Unavailable as error:
        log.error("impressions are not kept: %s", error.message)
        return None
