"""The actor that watches over rollouts: one a cluster, started by the first rollout, and again by Ray when it dies.

It carries one rollout at a time, and hears twice a second from every replica whose traffic is divided. One that starts
again finds in the log of aliases that a rollout was under way, and ends it: nobody has watched it meanwhile.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Any

from configs.errors import Conflict, Unavailable
from configs.settings import Settings
from deployments.pool_client import PoolClient
from deployments.releases.offline_checks import OfflineChecks
from deployments.releases.promotion import undivided
from deployments.releases.reports import Reports
from deployments.releases.rollout_run import LOOK_S, Checks, RolloutRun, Service
from deployments.releases.served import Served
from deployments.releases.views import BEGUN, ENDS, RolloutView
from pool.alias_log import Change
from pool.repository import CHALLENGER, CHAMPION, SHADOW, open_releases
from serving.experiments.roles import DivisionReport
from serving.experiments.rollout import RolloutPlan

log = logging.getLogger("recpool.rollout")
POOL_TIMEOUT_S = 10.0
INTERRUPTED = "its rollout was interrupted: the process that watched over it ended"


class Supervisor:
    """What the actor does, without Ray.

    Args:
        service, checks: absent: what runs in the settings' home, and the pool's works.
    """

    def __init__(
        self,
        settings: Settings,
        service: Service | None = None,
        checks: Checks | None = None,
        look_s: float = LOOK_S,
    ):
        self._settings, self._look_s = settings, look_s
        self._repository = open_releases(settings)
        self._service = service or _Running(settings)
        pool = PoolClient(read_timeout_s=POOL_TIMEOUT_S, change_timeout_s=POOL_TIMEOUT_S)
        self._checks = checks or OfflineChecks(settings, pool if settings.pool.runtime.enabled else None)
        self._reports = Reports()
        self._run: RolloutRun | None = None
        self._task: asyncio.Task[Any] | None = None
        self._recovery: asyncio.Task[None] | None = None

    async def begin(self, plan: RolloutPlan) -> RolloutView:
        """Start a rollout; the same one again changes nothing, as a proxy may send a request twice.

        Raises:
            Conflict: another one is under way, or the release is the champion. NotFound, ArtifactError: as
            `RolloutRun.begin`.
        """
        await self._recovered()
        if self._run is not None and not self._run.view.ended:
            if self._run.view.version == plan.version:
                return self._run.view
            raise Conflict(f"the rollout of release {self._run.view.version} is under way; cancel it first, or wait")
        run = RolloutRun(
            plan, self._settings.releases, self._repository, self._service, self._checks, self._reports,
            look_s=self._look_s,
        )  # fmt: skip
        self._run = run
        try:
            await asyncio.to_thread(run.begin)
        except BaseException:
            self._run = None
            raise
        self._task = asyncio.create_task(run.run())
        return run.view

    async def view(self) -> RolloutView:
        """Where the present or the last rollout of this process stands."""
        return self._run.view if self._run else RolloutView()

    async def cancel(self, reason: str) -> RolloutView:
        """Roll back. Raises Conflict when nothing is under way."""
        if self._run is None or self._run.view.ended:
            raise Conflict("no rollout is under way")
        self._run.cancel(reason)
        return self._run.view

    async def report(self, report: DivisionReport) -> str:
        """What a replica has seen; the answer is why it should give the release nothing more, or empty."""
        if self._run is None:
            self._recovered()
            return ""
        self._reports.take(report)
        # Another division is none of this rollout's: somebody made it by `serve deploy`.
        return self._run.stop_reason if report.traffic == self._run.traffic else ""

    def _recovered(self) -> asyncio.Task[None]:
        """Done when nothing is left of what an earlier process of this actor had begun."""
        if self._recovery is None:
            self._recovery = asyncio.create_task(asyncio.to_thread(self._recover))
        return self._recovery

    def _recover(self) -> None:
        table = self._repository.aliases()
        parts = [table[alias] for alias in (CHALLENGER, SHADOW) if alias in table]
        left = [version for version in parts if is_under_way(self._repository.history(version))]
        if not left or CHAMPION not in table:
            return
        self._service.choose(undivided(self._service.choice(), table[CHAMPION]))
        self._repository.change("rolled back", left[0], {CHALLENGER: None, SHADOW: None}, INTERRUPTED)


class SupervisorActor:
    """The same as a Ray actor, which `deployments.releases.supervision` starts; methods take and return one message."""

    def __init__(self, settings: Settings):
        logging.basicConfig(level=logging.INFO)
        self._supervisor = Supervisor(settings)

    async def begin(self, plan: RolloutPlan) -> RolloutView:
        return await self._supervisor.begin(plan)

    async def view(self) -> RolloutView:
        return await self._supervisor.view()

    async def cancel(self, reason: str) -> RolloutView:
        return await self._supervisor.cancel(reason)

    async def report(self, report: DivisionReport) -> str:
        return await self._supervisor.report(report)


def is_under_way(history: Sequence[Change]) -> bool:
    """Whether a release's rollout has begun and not ended, by its history, oldest first."""
    events = [change.event for change in history]
    begun = max((place for place, event in enumerate(events) if event == BEGUN), default=None)
    return begun is not None and not ENDS & set(events[begun:])


class _Running:
    """The service of a home, found anew each time: it may have been brought up again since."""

    def __init__(self, settings: Settings):
        self._settings = settings

    def choice(self) -> dict[str, Any]:
        return self._found().choice()

    def choose(self, choice: Any) -> None:
        self._found().choose(choice)

    def _found(self) -> Served:
        served = Served.find(self._settings)
        if served is None:
            raise Unavailable(f"no service runs in {self._settings.home}; a rollout needs one from `recpool up`")
        return served
