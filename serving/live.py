"""Releases as they serve: each with its funnel, and with one more for every arm of the experiments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor

from configs.errors import ConfigError
from configs.settings import STAGES, RankingSettings, RecallSettings, Settings
from features.store import FeatureStore
from pool.repository import ReleaseRepository
from serving.cascade import Cascade
from serving.coalescing import Work
from serving.experiments.spec import Experiment, arm_settings
from serving.hydration import Hydrator
from serving.items.following import follow
from serving.lanes import RunBatch
from serving.memory import require_room
from serving.recalling import LocalRecall
from serving.release import Release
from serving.stages import InPlace, load_stage, on_thread
from serving.types import LocalStage, StageCaller

Place = Callable[[RunBatch], RunBatch]
"""Makes a kind of work run where it should."""


class Funnel:
    """A cascade, and the kinds of work it does."""

    def __init__(self, cascade: Cascade, place: Place):
        self.cascade = cascade
        self.recommend = Work("recommend", place(cascade.recommend))
        self.rank = Work("rank", place(cascade.rank))
        self.similar = Work("similar", place(cascade.similar))


class Live:
    """A loaded release.

    Args:
        here: the stages that run in this process; ``callers`` has them too, and those elsewhere.
        call: makes a caller of a local stage.
    """

    def __init__(
        self,
        release: Release,
        here: Mapping[str, LocalStage],
        callers: Mapping[str, StageCaller],
        call: Callable[[LocalStage], StageCaller],
        hydrator: Hydrator,
        settings: Settings,
    ):
        self.release = release
        self._here, self._callers, self._call = here, callers, call
        self._hydrator, self._settings = hydrator, settings

    @property
    def version(self) -> str:
        return self.release.version

    def funnel(self, place: Place) -> Funnel:
        """The release's own. Raises ConfigError when the settings do not fit the release."""
        return Funnel(self._cascade(self._callers, self._settings.recall, self._settings.ranking), place)

    def arms(self, experiments: Sequence[Experiment], place: Place) -> dict[tuple[str, str], Funnel]:
        """The funnel of each arm, by the names of experiment and arm. Raises ConfigError as `arm_settings`."""
        found = {}
        for experiment in experiments:
            for arm in experiment.arms:
                recall, ranking = arm_settings(self._settings, experiment, arm)
                callers = dict(self._callers)
                if arm.recall:
                    callers["recall"] = self._recall_with(recall, f"experiments.{experiment.name}.{arm.name}.recall")
                found[experiment.name, arm.name] = Funnel(self._cascade(callers, recall, ranking), place)
        return found

    def _recall_with(self, settings: RecallSettings, where: str) -> StageCaller:
        stage = self._here.get("recall")
        if not isinstance(stage, LocalRecall):
            raise ConfigError(
                f"{where}: recall runs behind a handle, with one setting for all; fuse it, or leave this out"
            )
        return self._call(stage.with_settings(settings))

    def _cascade(self, callers: Mapping[str, StageCaller], recall: RecallSettings, ranking: RankingSettings) -> Cascade:
        return Cascade(self.release, callers, self._hydrator, recall, ranking)


class LiveLoader:
    """Loads releases for one process.

    Args:
        remote: callers of the stages that run elsewhere; the others run here.
        tiers: of every stage.
    """

    def __init__(
        self,
        settings: Settings,
        remote: Mapping[str, StageCaller],
        tiers: Mapping[str, str],
        repository: ReleaseRepository,
        executor: Executor,
        store: FeatureStore,
    ):
        self._settings, self._remote, self._tiers = settings, remote, tiers
        self._repository, self._executor, self._store = repository, executor, store

    def load(self, version: str, beside: bool) -> Live:
        """Verify and load; blocks.

        Args:
            beside: another release is in memory and stays there meanwhile.
        Raises:
            NotFound, ArtifactError: as `Release.load`. Unavailable: there is no memory for both.
        """
        if beside:
            require_room(self._repository.manifest(version), self._settings.plan.gateway.memory_mib)
        release = Release.load(self._repository, version)
        settings, executor = self._settings, self._executor
        names = [name for name in STAGES if name not in self._remote]
        here = {name: load_stage(name, release, settings, executor, self._tiers[name]) for name in names}
        follow(settings, release)
        callers = {**self._remote, **{name: self._call(stage) for name, stage in here.items()}}
        # What is mapped into memory is read in place; a server's answer is waited for on a thread.
        threads = None if settings.store.kind == "embedded" else executor
        hydrator = Hydrator(self._store, release.encoder, settings.store, threads)
        return Live(release, here, callers, self._call, hydrator, settings)

    def _call(self, stage: LocalStage) -> StageCaller:
        return on_thread(stage, self._executor) if self._remote else InPlace(stage)
