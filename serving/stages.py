"""The stages as they run in this process: recall and the two rankers, loaded from a release's folder.

A deployment of its own (`deployments/stages.py`) and a fused gateway run the same objects.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, ThreadPoolExecutor

import numpy as np

from configs.errors import NotFound
from configs.settings import STAGES, Settings
from pool.engines.threads import pin_threads
from ranking.store import RankStage
from serving.recalling import LocalRecall
from serving.release import Release
from serving.types import RankQuery, StageCaller


def stage_threads(cores: int) -> ThreadPoolExecutor:
    """Threads that stages and sources wait on side by side; each computes on no more cores than the slice has."""
    pin_threads(cores)
    return ThreadPoolExecutor(max_workers=8, thread_name_prefix="stage", initializer=pin_threads, initargs=(cores,))


class LocalRanker:
    """A ranker called on a thread, so that the event loop keeps turning while it computes."""

    def __init__(self, ranker: RankStage, executor: Executor):
        self._ranker = ranker
        self._executor = executor

    async def __call__(self, query: RankQuery, timeout_s: float) -> np.ndarray:
        """Objectives [B, C, O] float32; NaN at padding."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, self._ranker.rank, query.users, query.items)


def load_stage(name: str, release: Release, settings: Settings, executor: Executor, tier: str = "cpu") -> StageCaller:
    """Load one stage of a release.

    Raises:
        NotFound: no such stage; lists the known ones. ArtifactError: a file of it is missing or damaged.
    """
    if name not in STAGES:
        raise NotFound(f"no stage {name!r}; known stages: {list(STAGES)}")
    if name == "recall":
        return LocalRecall.load(release, settings.recall, executor, tier)
    ranking = settings.ranking
    return LocalRanker(RankStage.load(release.folder, name, ranking.engine, ranking.threads, tier), executor)
