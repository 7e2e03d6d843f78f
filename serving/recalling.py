"""The recall stage in this process: user tower, sources under their own timeouts, merge."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future
from dataclasses import replace
from types import MappingProxyType

import numpy as np

from configs.settings import RecallSettings, SourceName
from features.catalogue import Catalogue
from features.encoding import FIRST_KNOWN, Encoder, UserBatch
from features.live_catalogue import Changed, LiveCatalogue
from pool.engines.engine import Engine, Wrap, as_it_is
from pool.engines.onnx import OnnxEngine
from recall.merge import Merged, merge
from recall.pipeline import Recall
from recall.sources import RecallRequest, SourceResult, failure_of
from serving.release import Release
from serving.types import Candidates, RecallQuery, SimilarQuery

log = logging.getLogger("recpool.recall")
Items = Catalogue | LiveCatalogue
USER_TOWER = "models/user_tower/1/model.onnx"


class LocalRecall:
    """Answers `RecallQuery` and `SimilarQuery`. A source that raises or is late is named, never raised.

    Args:
        executor: threads for the sources that wait; the caller's own thread does what is computing.
    """

    def __init__(self, tower: Engine, recall: Recall, catalogue: Items, settings: RecallSettings, executor: Executor):
        self.encoder: Encoder | None = None
        self._tower = tower
        self._recall = recall
        self._catalogue = catalogue
        self._settings = settings
        self._executor = executor
        self._quotas: dict[SourceName, int] = {
            name: source.quota for name, source in settings.sources.items() if source.quota > 0
        }
        self._waiting: list[SourceName] = [name for name in self._quotas if recall.sources[name].waits]
        # Those that compute come first: the others are at work meanwhile.
        self._order = sorted(self._quotas, key=self._waiting.__contains__)

    @classmethod
    def load(
        cls, release: Release, settings: RecallSettings, executor: Executor, tier: str = "cpu", wrap: Wrap = as_it_is
    ) -> LocalRecall:
        """Load from a release's folder.

        Args:
            wrap: makes the user tower run elsewhere.
        Raises:
            ArtifactError: a part is missing or does not fit the release.
        """
        recall = Recall.load(release.folder / "recall", release.manifest.items, settings.index.nprobe)
        tower = wrap("user_tower", OnnxEngine(release.folder / USER_TOWER, tier=tier))
        local = cls(tower, recall, release.catalogue, settings, executor)
        if isinstance(release.catalogue, LiveCatalogue):
            local.encoder = release.encoder
            release.catalogue.subscribe(local.put)
        return local

    def with_settings(self, settings: RecallSettings) -> LocalRecall:
        """The same stage under other settings, over the same index and tower."""
        return LocalRecall(self._tower, self._recall, self._catalogue, settings, self._executor)

    def put(self, changed: Changed) -> None:
        """Recall what items are now, and no more those that are gone."""
        assert self.encoder is not None
        self._recall.put(changed.indices, changed.items, changed.gone, self.encoder)

    def __call__(self, query: RecallQuery | SimilarQuery) -> Candidates:
        if isinstance(query, SimilarQuery):
            return _candidates(*self._similar(query))
        eligible = self._eligible(query.filters, query.now_s)
        request = RecallRequest(query.users, None, query.excluded, eligible)
        started_s = lap_s = time.monotonic()
        # Those that wait are at work while the tower and the others compute.
        threads = {name: self._executor.submit(self._retrieve, name, request) for name in self._waiting}
        request = replace(request, vectors=self._vectors(query.users))
        took_ms, lap_s = {"tower": (time.monotonic() - lap_s) * 1000}, time.monotonic()
        found: dict[SourceName, SourceResult | None] = {}
        failed: list[tuple[str, str]] = []
        for name in self._order:
            left_s = started_s + self._settings.sources[name].timeout_ms / 1000 - lap_s
            found[name] = self._answer(name, request, threads.get(name), left_s, failed)
            took_ms[name], lap_s = (time.monotonic() - lap_s) * 1000, time.monotonic()
        results = {name: result for name in self._quotas if (result := found[name]) is not None}
        merged = merge(results, self._quotas, self._settings.candidates, rows=len(request))  # type: ignore[arg-type]
        took_ms["merge"] = (time.monotonic() - lap_s) * 1000
        return _candidates(merged, failed, took_ms)

    def _retrieve(self, name: SourceName, request: RecallRequest) -> SourceResult:
        return self._recall.sources[name].retrieve(request, self._quotas[name])

    def _answer(
        self,
        name: SourceName,
        request: RecallRequest,
        thread: Future[SourceResult] | None,
        left_s: float,
        failed: list[tuple[str, str]],
    ) -> SourceResult | None:
        """One source's answer, or None with the reason noted. One whose time is up before its turn has none."""
        try:
            if thread is None and left_s <= 0:
                raise TimeoutError
            result = self._retrieve(name, request) if thread is None else thread.result(max(0.0, left_s))
        except TimeoutError:
            if thread is not None:
                thread.cancel()
            failed.append((name, "timeout"))
            return None
        except Exception as error:  # the edge between a request and one of several sources
            log.warning("source %s failed", name, exc_info=error)
            failed.append((name, "failed"))
            return None
        failed += failure_of(name, result)
        return result

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
        catalogue = self._catalogue.snapshot()
        eligible = catalogue.eligible(now_s)
        if any(filters):
            return np.stack([eligible & catalogue.mask(f) if f else eligible for f in filters])
        return None if eligible[FIRST_KNOWN:].all() else eligible


def _candidates(
    merged: Merged, failed: Sequence[tuple[str, str]], took_ms: Mapping[str, float] = MappingProxyType({})
) -> Candidates:
    return Candidates(merged.items, merged.scores, merged.sources, tuple(failed), took_ms)
