"""One stage of the funnel as a deployment of its own."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from configs.errors import RecpoolError
from configs.settings import Settings
from deployments.choice import ReleaseChoice
from pool.repository import ReleaseRepository
from serving.release import Release
from serving.stages import load_stage
from serving.types import StageCaller

log = logging.getLogger("recpool.stage")
KEPT_RELEASES = 2
"""While a release rolls out, gateways of the old and of the new one call the same replica."""


class Stage:
    """Runs the same local implementation that a fused gateway runs in its own process.

    A query names the release its indices belong to. A replica that does not hold that release loads
    it first, so an answer never mixes two.
    """

    def __init__(self, stage: str, tier: str, settings: Settings):
        self._stage = stage
        self._tier = tier
        self._settings = settings
        self._repository = ReleaseRepository(settings.releases_folder)
        self._executor = ThreadPoolExecutor(max_workers=8, thread_name_prefix=stage)
        self._loaded: OrderedDict[str, StageCaller] = OrderedDict()
        self._loading = asyncio.Lock()

    async def reconfigure(self, user_config: dict[str, Any]) -> None:
        """Have the chosen release in memory before the first query for it comes."""
        version = ReleaseChoice.model_validate(user_config).version or self._repository.champion()
        if version is None:
            return
        try:
            await self._implementation(version)
        except RecpoolError as error:
            log.error("stage %s: release %s not loaded: %s", self._stage, version, error.message)

    async def run(self, query: Any, timeout_s: float) -> Any:
        """Answer one batch; see `serving.types` for what a query asks and what comes back.

        Raises:
            NotFound, ArtifactError: the query's release does not exist or is damaged.
        """
        implementation = await self._implementation(query.version)
        return await implementation(query, timeout_s)

    async def _implementation(self, version: str) -> StageCaller:
        if version in self._loaded:
            self._loaded.move_to_end(version)
            return self._loaded[version]
        async with self._loading:  # callers that wait here find it loaded by the first
            if version not in self._loaded:
                loop = asyncio.get_running_loop()
                self._loaded[version] = await loop.run_in_executor(self._executor, self._load, version)
                while len(self._loaded) > KEPT_RELEASES:
                    self._loaded.popitem(last=False)
            return self._loaded[version]

    def _load(self, version: str) -> StageCaller:
        release = Release.load(self._repository, version)
        return load_stage(self._stage, release, self._settings, self._executor, self._tier)
