"""The recall stage in this process: user tower, sources side by side under their own timeouts, merge."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import Any

import numpy as np

from configs.settings import RecallSettings, SourceName
from features.catalogue import Catalogue
from features.encoding import FIRST_KNOWN, UserBatch
from pool.engines.onnx import OnnxEngine
from recall.merge import Merged, merge
from recall.pipeline import Recall
from recall.sources import RecallRequest, SourceResult, failure_of
from serving.release import Release
from serving.types import Candidates, RecallQuery, SimilarQuery

log = logging.getLogger("recpool.recall")
USER_TOWER = "models/user_tower/1/model.onnx"


class LocalRecall:
    """Answers `RecallQuery` and `SimilarQuery`. A source that raises or is late is named, never raised."""

    def __init__(
        self, tower: OnnxEngine, recall: Recall, catalogue: Catalogue, settings: RecallSettings, executor: Executor
    ):
        self._tower = tower
        self._recall = recall
        self._catalogue = catalogue
        self._settings = settings
        self._executor = executor
        self._quotas: dict[SourceName, int] = {
            name: source.quota for name, source in settings.sources.items() if source.quota > 0
        }

    @classmethod
    def load(cls, release: Release, settings: RecallSettings, executor: Executor, tier: str = "cpu") -> LocalRecall:
        """Raises ArtifactError when a part is missing or does not fit the release."""
        recall = Recall.load(release.folder / "recall", release.manifest.items, settings.index.nprobe)
        tower = OnnxEngine(release.folder / USER_TOWER, tier=tier)
        return cls(tower, recall, release.catalogue, settings, executor)

    async def __call__(self, query: RecallQuery | SimilarQuery, timeout_s: float) -> Candidates:
        if isinstance(query, SimilarQuery):
            return _candidates(*await self._on_thread(self._similar, query))
        failed: list[tuple[str, str]] = []
        request = await self._on_thread(self._request, query)
        answers = await asyncio.gather(*(self._ask(name, request, failed) for name in self._quotas))
        results = {name: answer for name, answer in zip(self._quotas, answers, strict=True) if answer is not None}
        limit = self._settings.candidates
        merged = await self._on_thread(merge, results, self._quotas, limit, rows=len(request))
        return _candidates(merged, failed)

    async def _ask(
        self, name: SourceName, request: RecallRequest, failed: list[tuple[str, str]]
    ) -> SourceResult | None:
        """One source's answer, or None with the reason noted."""
        call = self._on_thread(self._recall.sources[name].retrieve, request, self._quotas[name])
        try:
            result = await asyncio.wait_for(call, self._settings.sources[name].timeout_ms / 1000)
        except TimeoutError:
            failed.append((name, "timeout"))
            return None
        except Exception as error:  # the edge between a request and one of several sources
            log.warning("source %s failed", name, exc_info=error)
            failed.append((name, "failed"))
            return None
        failed += failure_of(name, result)
        return result

    def _request(self, query: RecallQuery) -> RecallRequest:
        eligible = self._eligible(query.filters, query.now_s)
        return RecallRequest(query.users, self._vectors(query.users), query.excluded, eligible)

    def _vectors(self, users: UserBatch) -> np.ndarray | None:
        try:
            return self._tower.run(users.inputs())["user_vector"]
        except Exception as error:  # without vectors ANN fails by name and the other sources answer
            log.warning("user tower failed", exc_info=error)
            return None

    def _similar(self, query: SimilarQuery) -> tuple[Merged, Sequence[tuple[str, str]]]:
        rows = len(query.seeds)
        nobody = UserBatch(*(np.zeros((rows, *shape), np.int32) for shape in ((1,), (0,), (0, 1), (0,), (0,))))
        request = RecallRequest(nobody, None, query.excluded, self._eligible(query.filters, query.now_s))
        return self._recall.similar(query.seeds, request, query.count)

    def _eligible(self, filters: Sequence[str | None], now_s: float) -> np.ndarray | None:
        """[I + 2] for all rows, [B, I + 2] when some have a filter, None when everything is eligible."""
        eligible = self._catalogue.eligible(now_s)
        if any(filters):
            return np.stack([eligible & self._catalogue.mask(f) if f else eligible for f in filters])
        return None if eligible[FIRST_KNOWN:].all() else eligible

    async def _on_thread(self, work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: work(*args, **kwargs))


def _candidates(merged: Merged, failed: Sequence[tuple[str, str]]) -> Candidates:
    return Candidates(merged.items, merged.scores, merged.sources, tuple(failed))
