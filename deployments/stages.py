"""One stage of the funnel as a deployment of its own."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from functools import partial
from typing import Any

from configs.errors import RecpoolError
from configs.settings import Settings
from deployments import first_steps
from deployments.choice import read_choice
from deployments.load_reports import CallLoad, LoadReporter
from pool.repository import open_releases
from serving.items.following import follow
from serving.release import Release
from serving.stages import load_stage, on_thread, stage_threads
from serving.types import RankQuery, StageCaller

log = logging.getLogger("recpool.stage")
KEPT_RELEASES = 3
"""While a release rolls out, gateways call the same replica for the champion, a challenger and a shadow."""
RETRY_AFTER_S = 5.0
"""A release that failed to load is not read and checksummed again for every request that names it."""


class Stage:
    """Runs the same local implementation that a fused gateway runs in its own process.

    A query names the release its indices belong to. A replica that does not hold that release loads
    it first, so an answer never mixes two.

    Args:
        champion: the release to have in memory when ``user_config`` names none; absent: the champion then.
    """

    def __init__(self, stage: str, tier: str, settings: Settings, champion: str | None = None):
        self._stage = stage
        self._tier = tier
        self._settings = settings
        self._champion = champion
        self._repository = open_releases(settings)
        self._executor = stage_threads(settings.ranking.threads)
        self._sources = stage_threads(settings.ranking.threads)
        self._load_of_calls = CallLoad(settings.autoscale.slo_ms)
        self._reporter = LoadReporter(settings.autoscale, stage, self._load_of_calls, settings.ranking.threads or 1)
        self._loads: OrderedDict[str, asyncio.Task[StageCaller]] = OrderedDict()

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Have the chosen release in memory before the first query for it comes.

        A wrong choice is logged, not raised: Serve would replace the replica, and what it holds still serves.
        """
        try:
            choice = read_choice(user_config)
            version = choice.version or self._champion or self._repository.champion()
        except RecpoolError as error:
            log.error("stage %s: %s not carried out: %s", self._stage, user_config, error.message)
        else:
            for each in (*((version,) if version else ()), *choice.traffic.versions):
                await self._have(each)
        self._reporter.start()
        first_steps.done()

    async def _have(self, version: str) -> None:
        try:
            await self._implementation(version)
        except RecpoolError as error:
            log.error("stage %s: release %s is not ready: %s", self._stage, version, error.message)

    async def run(self, query: Any, timeout_s: float) -> Any:
        """Answer one batch; see `serving.types` for what a query asks and what comes back.

        Raises:
            NotFound, ArtifactError: the query's release does not exist or is damaged.
        """
        with self._load_of_calls.call(_rows(query)):
            implementation = await self._implementation(query.version)
            return await implementation(query, timeout_s)

    async def _implementation(self, version: str) -> StageCaller:
        """The stage of a release, from the one load that all who ask for it share."""
        if version not in self._loads:
            self._loads[version] = asyncio.create_task(self._load(version))
            self._loads[version].add_done_callback(partial(self._settle, version))
        self._loads.move_to_end(version)
        # A caller is cancelled at its deadline; the load goes on for those who come after it.
        return await asyncio.shield(self._loads[version])

    async def _load(self, version: str) -> StageCaller:
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._read, version)

    def _read(self, version: str) -> StageCaller:
        release = Release.load(self._repository, version)
        stage = load_stage(self._stage, release, self._settings, self._sources, self._tier)
        follow(self._settings, release)
        return on_thread(stage, self._executor)

    def _settle(self, version: str, load: asyncio.Task[StageCaller]) -> None:
        """Forget a failure after a while, and after a success the releases that are too many."""
        if _failed(load):
            load.get_loop().call_later(RETRY_AFTER_S, self._loads.pop, version, None)
            return
        held = [each for each, other in self._loads.items() if other.done() and not _failed(other)]
        for surplus in held[:-KEPT_RELEASES]:
            del self._loads[surplus]


def _rows(query: Any) -> int:
    """Requests of a batch."""
    return len(query.items if isinstance(query, RankQuery) else query.excluded)


def _failed(load: asyncio.Task[StageCaller]) -> bool:
    return load.cancelled() or load.exception() is not None
