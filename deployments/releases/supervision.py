"""The supervisor of rollouts from other processes: found by name, started when it is first needed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import ray
from ray.exceptions import RayActorError, RayTaskError

from configs.errors import Conflict, DeadlineExceeded, RecpoolError, Unavailable
from configs.settings import Settings
from deployments.pool_client import NAMESPACE, NOT_CONNECTED
from deployments.releases.supervisor import SupervisorActor
from deployments.releases.views import RolloutView
from serving.experiments.roles import DivisionReport
from serving.experiments.rollout import RolloutPlan

SUPERVISOR = "rollout-supervisor"
TIMEOUT_S = 0.9
"""HAProxy gives a POST to another gateway after 1.05 s; `Supervisor.begin` takes the second one for the first."""


class Rollouts(Protocol):
    """What routes and replicas ask of the supervisor; `Supervision` has it."""

    async def begin(self, plan: RolloutPlan) -> RolloutView: ...
    async def view(self) -> RolloutView: ...
    async def cancel(self, reason: str) -> RolloutView: ...
    async def report(self, report: DivisionReport) -> str: ...


class Supervision:
    """Asks the supervisor of this process's cluster.

    Args:
        find: the actor, or None when there is none; ``start`` makes it. Both block.
    """

    def __init__(
        self,
        settings: Settings,
        find: Callable[[], Any] | None = None,
        start: Callable[[Settings], Any] | None = None,
        timeout_s: float = TIMEOUT_S,
    ):
        self._settings, self._timeout_s = settings, timeout_s
        self._find, self._start = find or find_supervisor, start or start_supervisor
        self._actor: Any = None

    async def begin(self, plan: RolloutPlan) -> RolloutView:
        """Start a rollout. One that has no answer in time is starting: the supervisor's process takes seconds.

        Raises:
            Conflict, NotFound, ArtifactError: as `Supervisor.begin`.
        """
        if await self._found() is None:
            self._actor = await asyncio.to_thread(self._start, self._settings)
        try:
            return await self._ask("begin", plan)
        except DeadlineExceeded:
            return RolloutView(plan.version, phase="starting")

    async def view(self) -> RolloutView:
        """Of no rollout, where none was begun since the service came up."""
        return RolloutView() if await self._found() is None else await self._ask("view")

    async def cancel(self, reason: str) -> RolloutView:
        """Raises Conflict when there is nothing to cancel."""
        if await self._found() is None:
            raise Conflict("no rollout is under way")
        return await self._ask("cancel", reason)

    async def report(self, report: DivisionReport) -> str:
        """Raises Unavailable when there is nobody to tell."""
        return await self._ask("report", report)

    async def _found(self) -> Any:
        if self._actor is None:
            self._actor = await asyncio.to_thread(self._find)
        return self._actor

    async def _ask(self, method: str, *arguments: Any) -> Any:
        actor = await self._found()
        if actor is None:
            raise Unavailable("no rollout is under way")
        try:
            async with asyncio.timeout(self._timeout_s):
                return await getattr(actor, method).remote(*arguments)
        except TimeoutError:
            raise DeadlineExceeded(f"the supervisor of rollouts did not answer within {self._timeout_s:g} s") from None
        except RayTaskError as error:
            if isinstance(error.cause, RecpoolError):
                raise error.cause from None
            raise
        except RayActorError as error:
            self._actor = None
            raise Unavailable("the supervisor of rollouts starts again; it ends what was under way") from error


def find_supervisor() -> Any:
    """The actor, or None. Raises Unavailable outside of a cluster. Blocks."""
    if not ray.is_initialized():
        raise Unavailable(NOT_CONNECTED)
    try:
        return ray.get_actor(SUPERVISOR, namespace=NAMESPACE)
    except ValueError:
        return None


def start_supervisor(settings: Settings) -> Any:
    """The actor, started if there is none; it outlives this process, and Ray starts it again whenever it dies."""
    settings = settings.model_copy(update={"home": settings.home.absolute()})
    remote: Any = ray.remote(SupervisorActor)
    options = {"name": SUPERVISOR, "namespace": NAMESPACE, "lifetime": "detached", "get_if_exists": True}
    return remote.options(**options, num_cpus=0, max_restarts=-1, max_concurrency=100).remote(settings)
