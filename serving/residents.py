"""The releases in this process: the one that serves, and those that get a share or a copy of its traffic."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from concurrent.futures import Executor

from configs.errors import OfflineError, RecpoolError, Unavailable
from configs.settings import Settings
from features.store import FeatureStore
from pool.repository import ReleaseRepository
from serving.desk import CLOSE_AFTER_S, Desk
from serving.experiments.division import Division, Side, undivided
from serving.experiments.roles import CHALLENGER, CHAMPION, SHADOW
from serving.experiments.spec import WHOLE, Traffic
from serving.lanes import Gate
from serving.live import Live, LiveLoader
from serving.types import StageCaller
from serving.warming import warm_up

log = logging.getLogger("recpool.service")


class Residents:
    """Loads before it lets go: a release is in memory, and warm, before the first request goes to it.

    Args:
        remote: callers of the stages that run elsewhere.
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
        self._settings, self._repository, self._executor = settings, repository, executor
        self._all_here = not remote
        self._loader = LiveLoader(settings, remote, tiers, repository, executor, store)
        self.desk = Desk(settings, settings.serving.lanes, self._all_here)
        self._gate: Gate | None = None
        self.division: Division | None = None
        self.why_not_ready = "no release is loaded yet"

    @property
    def live(self) -> Live | None:
        """The release that serves."""
        return self.division.champion.live if self.division else None

    @property
    def versions(self) -> list[str]:
        """Of all releases in memory, that of the one that serves first."""
        sides = self.division.sides.values() if self.division else ()
        return list(dict.fromkeys(side.live.version for side in sides))

    def pass_gate(self, gate: Gate | None) -> None:
        self._gate = gate
        for desk in self._desks():
            desk.pass_gate(gate)

    async def load(self, version: str | None, warm: bool) -> str:
        """Make a version (None: the champion) the one that serves; as `Service.load`. It gets all of the traffic."""
        try:
            version = version or self._repository.champion()
            if version is None:
                raise Unavailable("no release has been promoted; run `recpool train`")
            if self.live is None or self.live.version != version:
                resident = self._resident(version)  # and warm
                division = undivided(resident or await self._load(version), self.desk)
                if warm and resident is None:
                    await self._warm(division.champion)
                self._replace(division)
        except RecpoolError as error:
            log.error("release %s not loaded: %s", version or "(champion)", error.message)
            # What names files is for the log; anyone may ask for the reason.
            vague = isinstance(error, OfflineError)
            self.why_not_ready = "the release cannot be loaded; the log says why" if vague else error.message
            raise
        return version

    async def divide(self, traffic: Traffic, warm: bool) -> None:
        """Divide the traffic of the release that serves; a release that cannot be loaded gets none, and is told of.

        Raises:
            ConfigError: an experiment does not fit; the division stays as it was.
        """
        live, now = self.live, self.division
        if live is None or now is None or now.traffic == traffic:
            return
        sides = {CHAMPION: Side(CHAMPION, live, self.desk, traffic)}
        missing: dict[str, str] = {}
        for role, wanted in ((CHALLENGER, traffic.challenger), (SHADOW, traffic.shadow)):
            if wanted is None or wanted.version == live.version:
                continue
            try:
                sides[role] = await self._side(role, wanted.version, traffic, sides, warm)
            except RecpoolError as error:
                log.error("release %s is no %s: %s", wanted.version, role, error.message)
                missing[wanted.version] = error.message
        self._replace(Division(traffic, sides, missing))

    def undivide(self) -> None:
        """All of the traffic to the release that serves, at once."""
        if self.live is not None and self.division is not None and self.division.traffic != WHOLE:
            self._replace(undivided(self.live, self.desk))

    def close(self) -> None:
        for desk in self._desks():
            desk.close()

    async def _side(self, role: str, version: str, traffic: Traffic, sides: Mapping[str, Side], warm: bool) -> Side:
        """A release beside the one that serves, at a desk of its own; loaded and warm unless it is already."""
        loaded = next((side.live for side in sides.values() if side.live.version == version), None)
        loaded = loaded or self._resident(version)
        before = self.division.sides.get(role) if self.division else None
        if before is not None and before.live is loaded:
            return Side(role, before.live, before.desk, traffic)
        desk = Desk(self._settings, 1, self._all_here)
        desk.pass_gate(self._gate)
        side = Side(role, loaded or await self._load(version), desk, traffic)
        if warm and loaded is None:
            await self._warm(side)
        return side

    async def _load(self, version: str) -> Live:
        beside = self.live is not None
        return await asyncio.get_running_loop().run_in_executor(self._executor, self._loader.load, version, beside)

    async def _warm(self, side: Side) -> None:
        beside = self.live is not None
        await warm_up(side.own.recommend.run, side.live.release, self._settings.serving, beside)

    def _resident(self, version: str) -> Live | None:
        sides = self.division.sides.values() if self.division else ()
        return next((side.live for side in sides if side.live.version == version), None)

    def _desks(self) -> list[Desk]:
        sides = self.division.sides.values() if self.division else ()
        return list({id(desk): desk for desk in (self.desk, *(side.desk for side in sides))}.values())

    def _replace(self, division: Division) -> None:
        """Requests under way end where they are; desks that are not needed any more close after that."""
        before = self._desks()
        self.division = division
        kept = set(map(id, self._desks()))
        for desk in before:
            if id(desk) not in kept:
                asyncio.get_running_loop().call_later(CLOSE_AFTER_S, desk.close)
