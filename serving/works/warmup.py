"""Warming a release up beside the serving one, as a pool's work."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from configs.errors import ArtifactError, ConfigError, NotFound
from configs.settings import STAGES, Settings
from features.encoding import FIRST_KNOWN
from features.store import FeatureStore, open_store
from pool.repository import ReleaseRepository, open_releases
from pool.work import Progress
from serving.cascade import Cascade
from serving.preparation import Row, prepare_recommend
from serving.release import Release
from serving.schemas import RecommendRequest
from serving.stages import stage_threads
from serving.types import Slate
from serving.works.asking import Asker, deadline_s, patient
from serving.works.options import WarmupOptions
from serving.works.parts import PartList, Tasks
from serving.works.saved import Saved, check_same, read_state, write_state

KIND = "warmup"
FEWEST_REQUESTS = 64
"""Users that are asked for where no requests are given."""


class WarmupWork:
    """Implements `pool.work.Work`: loads a release, replays requests at each batch size, and checks the answers.

    A unit loads one part or answers one batch, which for tens of rows takes tens of milliseconds. What it warms is
    this process, so a checkpoint holds nothing and a restored work begins anew. Afterwards `cascade` can take over.

    Args:
        store: of the users; absent: the settings' one, which is closed with the work.
    Raises:
        NotFound: no such release, or none that serves.
        ConfigError: a request is none, or there is not one reference answer for each.
    """

    def __init__(self, settings: Settings, options: WarmupOptions, store: FeatureStore | None = None):
        self._settings, self._options, self._given_store = patient(settings), options, store
        self._repository = open_releases(settings)
        self.version = _version(self._repository, options.version)
        self._requests = [_request(place, body) for place, body in enumerate(options.requests)]
        if options.reference is not None and len(options.reference) != len(self._requests):
            raise ConfigError(
                f"reference: {len(options.reference)} answers for {len(self._requests)} requests; give one for each"
            )
        self._executor = stage_threads(settings.ranking.threads)
        self._store: FeatureStore | None = None
        self._asker: Asker | None = None
        self._cascade: Cascade | None = None
        self._taken_ms: dict[int, list[float]] = {size: [] for size in options.batch_sizes}
        self._checked = 0
        loading = [
            ("loading the release", self._load),
            *((f"loading {s}", partial(self._load_stage, s)) for s in STAGES),
        ]
        sizes = [(f"answering batches of {size}", partial(self._answer, size, run)) for size in self._taken_ms
                 for run in range(options.runs)]  # fmt: skip
        tasks = Tasks([*loading, ("joining the stages", self._join), *sizes])
        self._parts = PartList(tasks, [], lambda saved: None)

    @property
    def cascade(self) -> Cascade:
        """The release's funnel, warm once `step` returned 0."""
        assert self._cascade is not None, "the release is not loaded yet"
        return self._cascade

    def step(self, units: int) -> int:
        return self._parts.step(units)

    def progress(self) -> Progress:
        tasks = self._parts.reading
        return Progress(tasks.count, tasks.total, tasks.doing, {"checked": float(self._checked)})

    def save(self, folder: Path) -> None:
        write_state(folder, KIND, Saved({"version": self.version}))

    def restore(self, folder: Path) -> None:
        check_same(folder, read_state(folder, KIND).values, {"version": self.version})

    def result(self) -> Mapping[str, Any]:
        """Milliseconds of a batch by its rows, and how many answers were checked."""
        batches = [
            {
                "batch_rows": size,
                "p50_ms": round(float(np.median(taken)), 3),
                "p99_ms": round(float(np.quantile(taken, 0.99)), 3),
                "runs": len(taken),
            }
            for size, taken in self._taken_ms.items()
        ]
        compared = self._options.reference is not None
        return {"version": self.version, "batches": batches, "checked": self._checked, "compared": compared}

    def close(self) -> None:
        """Let go of the store, the threads and the event loop; the cascade cannot be used after it."""
        if self._asker is not None:
            self._asker.close()
        if self._store is not None and self._given_store is None:
            self._store.close()
        self._executor.shutdown()

    def _load(self) -> None:
        release = Release.load(self._repository, self.version)
        self._asker = Asker(release, self._settings, self._executor)
        users = release.encoder.user_ids.values[:FEWEST_REQUESTS]
        self._requests = self._requests or [RecommendRequest.model_validate({"user_id": user}) for user in users]

    def _load_stage(self, stage: str) -> None:
        assert self._asker is not None
        self._asker.load(stage)

    def _join(self) -> None:
        assert self._asker is not None
        self._store = self._given_store or open_store(self._settings.store, self._settings.store_folder)
        self._cascade = self._asker.cascade(self._store)

    def _answer(self, size: int, run: int) -> None:
        """Answer the next ``size`` requests as one batch; the first batch of a size pays for what is made on demand."""
        assert self._asker is not None
        places = [(run * size + n) % len(self._requests) for n in range(size)]
        release, default_k = self._asker.release, self._settings.serving.default_k
        rows = [prepare_recommend(self._requests[place], release, deadline_s(), default_k) for place in places]
        began_s = time.perf_counter()
        slates = self._asker.ask(self.cascade, rows)
        if run:
            self._taken_ms[size].append((time.perf_counter() - began_s) * 1000)
        for place, row, slate in zip(places, rows, slates, strict=True):
            self._check(place, row, slate)

    def _check(self, place: int, row: Row, slate: Slate) -> None:
        """Raise ArtifactError when the answer makes no sense, or is not the reference's."""
        assert self._asker is not None
        release, user = self._asker.release, row.user_id
        inside = (slate.items >= FIRST_KNOWN) & (slate.items < len(release.vectors))
        if not len(slate.items) and row.filter is None or not inside.all() or not np.isfinite(slate.scores).all():
            raise ArtifactError(
                f"release {self.version}: the answer for user {user!r} is empty or holds unknown items or scores; "
                "publish it again"
            )
        if self._options.reference is not None:
            found = tuple(release.encoder.item_ids.value(int(item)) for item in slate.items)
            wanted = self._options.reference[place]
            if found != wanted:
                raise ArtifactError(
                    f"release {self.version}: user {user!r} gets {list(found)[:5]}…, the reference {list(wanted)[:5]}…"
                )
        self._checked += 1


def _version(repository: ReleaseRepository, version: str | None) -> str:
    """The one asked for, or the champion."""
    chosen = version or repository.champion()
    if chosen is None:
        raise NotFound("no release serves; name a version, or run `recpool train`")
    repository.path(chosen)
    return chosen


def _request(place: int, body: Mapping[str, Any]) -> RecommendRequest:
    try:
        return RecommendRequest.model_validate(body)
    except ValidationError as error:
        raise ConfigError(f"requests: number {place} is no recommendation request ({error})") from error
