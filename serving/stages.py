"""The stages as they run in this process: recall and the two rankers, loaded from a release's folder.

A deployment of its own (`deployments/stages.py`) and a fused gateway run the same objects.
"""

from __future__ import annotations

import asyncio
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import numpy as np

from configs.errors import NotFound
from configs.settings import STAGES, Settings
from features.catalogue import Catalogue
from features.live_catalogue import Changed, LiveCatalogue
from pool.engines.remote import triton_wrap
from pool.engines.threads import pin_process, pin_threads
from ranking.store import RankStage
from serving.recalling import LocalRecall
from serving.release import Release
from serving.types import LocalStage, RankQuery, StageCaller


def stage_threads(cores: int | None) -> ThreadPoolExecutor:
    """Threads that stages and sources wait on side by side; each computes on no more cores than the slice has.

    Args:
        cores: absent: one.
    """
    cores = cores or 1
    pin_process(cores)
    return ThreadPoolExecutor(max_workers=8, thread_name_prefix="stage", initializer=pin_threads, initargs=(cores,))


class LocalRanker:
    """Answers `RankQuery` with objectives [B, C, O] float32, NaN at padding."""

    def __init__(self, ranker: RankStage, catalogue: Catalogue | LiveCatalogue):
        self._ranker, self._catalogue = ranker, catalogue  # which is followed for as long as somebody holds it
        if isinstance(catalogue, LiveCatalogue):
            catalogue.subscribe(self.put)

    def put(self, changed: Changed) -> None:
        """Score items by what they are now."""
        self._ranker.put(changed.indices, changed.items)

    def __call__(self, query: RankQuery) -> np.ndarray:
        return self._ranker.rank(query.users, query.items)


class InPlace:
    """The stage on the caller's own thread, for those who have a thread to spare: `serving.lanes`.

    Nothing could interrupt it, so whoever knows it may call ``stage`` without waiting.
    """

    def __init__(self, stage: LocalStage):
        self.stage = stage

    async def __call__(self, query: Any, timeout_s: float) -> Any:
        return self.stage(query)


def on_thread(stage: LocalStage, executor: Executor) -> StageCaller:
    """The stage on another thread, so that the caller's event loop keeps turning while it computes."""

    async def call(query: Any, timeout_s: float) -> Any:
        return await asyncio.get_running_loop().run_in_executor(executor, stage, query)

    return call


def load_stage(name: str, release: Release, settings: Settings, executor: Executor, tier: str = "cpu") -> LocalStage:
    """Load one stage of a release; recall's sources that wait go to ``executor``.

    Raises:
        NotFound: no such stage; lists the known ones. ArtifactError: a file of it is missing or damaged.
    """
    if name not in STAGES:
        raise NotFound(f"no stage {name!r}; known stages: {list(STAGES)}")
    if name == "recall":
        wrap = triton_wrap(settings.triton, "recall", release.version)
        return LocalRecall.load(release, settings.recall, executor, tier, wrap)
    ranking, wrap = settings.ranking, triton_wrap(settings.triton, name, release.version)  # type: ignore[arg-type]
    return LocalRanker(
        RankStage.load(release.folder, name, ranking.engine, ranking.threads or 1, tier, wrap), release.catalogue
    )
