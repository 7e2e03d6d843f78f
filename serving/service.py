"""The service: one live release with its cascade, swapped whole, and the routes' work as plain methods."""

from __future__ import annotations

import contextlib
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from configs.errors import InvalidRequest, Overloaded, RecpoolError, Unavailable
from configs.settings import STAGES, Settings
from features.background_writer import BackgroundWriter
from features.event_log import open_event_log
from features.store import open_store
from pool.policy.latency import BatchTime
from pool.repository import open_releases
from serving.answering import Answering, Asked
from serving.coalescing import Work
from serving.events.intake import open_intake
from serving.experiments.division import Division, Part
from serving.experiments.mirroring import Mirroring
from serving.experiments.roles import CHALLENGER, CHAMPION
from serving.experiments.spec import Traffic
from serving.idempotency import recommendation_id
from serving.items.intake import ItemIntake
from serving.lanes import Gate
from serving.preparation import Row, prepare_rank, prepare_similar
from serving.replies import impression
from serving.residents import Residents
from serving.schemas import NO_HEADERS, CallHeaders, RankRequest, RecommendRequest, SimilarRequest
from serving.stages import stage_threads
from serving.types import StageCaller
from serving.warming import sample_users

log = logging.getLogger("recpool.service")

LATENCIES_KEPT = 2_048
SCENES_KEPT = 32
"""Scenes that are counted apart."""


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
        self._executor = stage_threads(settings.ranking.threads)
        self._store = open_store(settings.store, settings.store_folder)
        self._impressions = _open_impressions(settings)
        self.events = open_intake(settings, self._store)
        self.items = ItemIntake(settings, lambda: self._releases.live.release if self._releases.live else None)
        self._releases = Residents(
            settings, self._remote, self._tiers, open_releases(settings), self._executor, self._store
        )
        self._admission, self._quality = self._releases.desk.admission, self._releases.desk.quality
        serving = settings.serving
        self._answering = Answering(settings, self._executor)
        self._mirroring = Mirroring(
            serving.default_k, serving.default_timeout_ms / 1000, lambda: not self._admission.waiting
        )
        self._started_s = time.time()
        self._counts = {"requests": 0, "degraded": 0, "errors": 0}
        self._scenes: Counter[str] = Counter()
        self._unlogged = 0
        self._latencies: deque[tuple[float, float]] = deque(maxlen=LATENCIES_KEPT)

    @property
    def ready(self) -> bool:
        return self._releases.division is not None

    @property
    def version(self) -> str | None:
        """Of the live release."""
        return self._releases.live.version if self._releases.live else None

    @property
    def division(self) -> Division | None:
        """How the traffic is divided here; None while there is no release."""
        return self._releases.division

    @property
    def why_not_ready(self) -> str | None:
        return None if self.ready else self._releases.why_not_ready

    def pass_gate(self, gate: Gate | None) -> None:
        """Compute behind the gate of a device from here on; without one, or where stages are elsewhere, freely."""
        self._releases.pass_gate(gate)

    def latencies_ms(self, over_s: float) -> list[float]:
        """Of the requests answered within the last seconds, from their arrival; in order, at most 2,048."""
        since_s = time.monotonic() - over_s
        return [took_ms for at_s, took_ms in tuple(self._latencies) if at_s >= since_s]

    def scenes(self) -> Mapping[str, float]:
        """Recommendations answered since the start, by scene; those without one, and of too many, under no name."""
        return dict(self._scenes)

    @property
    def queue(self) -> int:
        """Requests that wait for a batch."""
        return self._admission.waiting

    def batch_times(self) -> tuple[BatchTime, ...]:
        """What batches of recommendations took lately, by their rows; none where stages run elsewhere."""
        return self._admission.times("recommend").summary() if not self._remote else ()

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
        return await self._releases.load(version, warm)

    async def divide(self, traffic: Traffic, warm: bool = False) -> None:
        """Give parts of the traffic to other releases and settings, as `Residents.divide`."""
        await self._releases.divide(traffic, warm)

    def undivide(self) -> None:
        """Let the release that serves answer everything."""
        self._releases.undivide()

    def sample_users(self, count: int) -> list[str]:
        """Users that the live release knows; none without one."""
        live = self._releases.live
        return sample_users(live.release, count) if live else []

    async def close(self) -> None:
        if self._impressions is not None:
            self._impressions.close()
        if self.events is not None:
            self.events.close()
        self.items.close()
        self._releases.close()
        self._executor.shutdown(wait=False, cancel_futures=True)
        self._store.close()

    async def recommend(self, request: RecommendRequest, headers: CallHeaders = NO_HEADERS) -> dict[str, Any]:
        """Reply to a recommend request; see `serving.schemas.Reply`.

        Raises:
            InvalidRequest: a field is wrong. Unavailable: not ready. Overloaded: too busy to answer in time.
        """
        started, division = _arrival_s(headers), self._require_division()
        part = division.part(request.user_id, request.scene)
        answering = self._answering
        with self._counting():
            tries = part.role == CHALLENGER
            answered = await answering.tried(division, part, request, headers, started) if tries else None
            if answered is None:
                part = division.instead(part, request.user_id, request.scene)
                answered = await answering.recommended(division, part, request, headers, started)
        self._count(answered.reply, started)
        self._scene(request.scene or "")
        if not request.dry_run:
            self._log(impression(answered.reply, answered.row, request.scene, time.time(), part.told))
            if part.role == CHAMPION:
                self._mirroring.offer(division, request, answered.reply)
        return answered.reply

    async def rank(self, request: RankRequest, headers: CallHeaders = NO_HEADERS) -> dict[str, Any]:
        """Order the caller's own items; unknown ones come last, without a score."""
        side = self._require_division().champion
        return await self._of_champion(side.whole, side.own.rank, request, headers, request.debug, prepare_rank)

    async def similar(self, request: SimilarRequest, headers: CallHeaders = NO_HEADERS) -> dict[str, Any]:
        """Items like the given ones."""
        side, default_k = self._require_division().champion, self._settings.serving.default_k
        return await self._of_champion(
            side.whole, side.own.similar, request, headers, False, prepare_similar, default_k
        )

    async def _of_champion(
        self,
        part: Part,
        work: Work,
        request: RankRequest | SimilarRequest,
        headers: CallHeaders,
        debug: bool,
        prepare: Callable[..., Row],
        *more: Any,
    ) -> dict[str, Any]:
        asked = Asked(recommendation_id(None), request, headers.priority, _arrival_s(headers), debug=debug)
        with self._counting():
            reply, _ = await self._answering.answer(asked, part, work, prepare, *more)
        return self._count(reply, asked.started_s)

    def status(self) -> dict[str, Any]:
        """What runs here; see `serving.schemas.Status`."""
        release = self._releases.live.release if self._releases.live else None
        return {
            "ready": self.ready,
            "versions": release.versions if release else {},
            "resident": self._releases.versions,
            "traffic": self.division.traffic.model_dump(mode="json") if self.division else {},
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
            **(self.events.status() if self.events else {}),
        }

    def _log(self, record: dict[str, Any]) -> None:
        if self._impressions is None or not self._impressions.submit(record):
            self._unlogged += 1

    @contextlib.contextmanager
    def _counting(self) -> Iterator[None]:
        """What fails a caller for no fault of his own is counted."""
        try:
            yield
        except (InvalidRequest, Overloaded):
            raise
        except Exception:
            self._counts["errors"] += 1
            raise

    def _count(self, reply: dict[str, Any], started: float) -> dict[str, Any]:
        """A reply that the caller gets."""
        now_s = time.monotonic()
        self._latencies.append((now_s, (now_s - started) * 1000))
        self._counts["requests"] += 1
        self._counts["degraded"] += bool(reply["degraded"])
        return reply

    def _scene(self, scene: str) -> None:
        self._scenes[scene if scene in self._scenes or len(self._scenes) < SCENES_KEPT else ""] += 1

    def _require_division(self) -> Division:
        division = self._releases.division
        if division is None:
            raise Unavailable(f"not ready: {self._releases.why_not_ready}")
        return division


def _arrival_s(headers: CallHeaders) -> float:
    """When the call reached the service, its proxy included, on the monotonic clock."""
    return time.monotonic() - headers.waited_s(time.time())


def _open_impressions(settings: Settings) -> BackgroundWriter | None:
    """The log of impressions; without one the service still answers, and counts what it could not keep."""
    try:
        return BackgroundWriter(open_event_log(settings, durable=False))
    except Unavailable as error:
        log.error("impressions are not kept: %s", error.message)
        return None
