"""A release's cascade in this process, asked in batches from plain code."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import Executor

from configs.errors import ArtifactError
from configs.settings import STAGES, Settings
from features.store import FeatureStore
from serving.cascade import Cascade
from serving.hydration import Hydrator
from serving.preparation import Row
from serving.release import Release
from serving.stages import InPlace, load_stage
from serving.types import LocalStage, Slate

PATIENT_MS = 60_000.0
PATIENT_S = 3_600.0


def patient(settings: Settings) -> Settings:
    """Without the bounds that keep a live request on time: quality is measured here, and every answer waited for."""
    sources = {
        name: source.model_copy(update={"timeout_ms": PATIENT_MS}) for name, source in settings.recall.sources.items()
    }
    recall = settings.recall.model_copy(update={"sources": sources})
    store = settings.store.model_copy(update={"timeout_ms": PATIENT_MS})
    return settings.model_copy(update={"recall": recall, "store": store})


def deadline_s() -> float:
    """One that no answer misses, on the cascade's clock."""
    return time.monotonic() + PATIENT_S


class Asker:
    """Asks cascades over one release; they share its stages and one event loop. `close` it at the end."""

    def __init__(self, release: Release, settings: Settings, executor: Executor):
        self.release, self._settings, self._executor = release, settings, executor
        self._stages: dict[str, LocalStage] = {}
        self._runner = asyncio.Runner()

    def load(self, stage: str) -> None:
        """Raises ArtifactError when a file of the stage is missing or damaged."""
        self._stages[stage] = load_stage(stage, self.release, self._settings, self._executor)

    def cascade(self, store: FeatureStore, stages: Sequence[str] = STAGES) -> Cascade:
        """Of some loaded stages. The store is asked on this thread, so it should answer at once."""
        callers = {name: InPlace(self._stages[name]) for name in stages}
        hydrator = Hydrator(store, self.release.encoder, self._settings.store, None)
        return Cascade(self.release, callers, hydrator, self._settings.recall, self._settings.ranking)

    def ask(self, cascade: Cascade, rows: Sequence[Row]) -> list[Slate]:
        """Raises ArtifactError when a stage could not do its part: the release does not work here."""
        slates = self._runner.run(cascade.recommend(rows))
        for row, slate in zip(rows, slates, strict=True):
            failed = [(part, why) for part, why in slate.trace.degraded if part.split(".")[0] in STAGES]
            if failed:
                raise ArtifactError(
                    f"release {self.release.version}: {failed} in the answer for user {row.user_id!r}; see the log"
                )
        return slates

    def close(self) -> None:
        self._runner.close()
