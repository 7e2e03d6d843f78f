"""A stage in other processes, seen as a plain callable that outlives any one of its replicas."""

from __future__ import annotations

import asyncio
import contextvars
import time
from collections.abc import Callable, Collection, Coroutine
from dataclasses import dataclass, field
from typing import Any

from ray.exceptions import ActorDiedError, RayActorError, RayTaskError
from ray.serve.exceptions import BackPressureError, DeploymentUnavailableError
from ray.serve.handle import DeploymentHandle

from configs.errors import Conflict, DeadlineExceeded, InvalidRequest, NotFound, Overloaded, Unavailable
from configs.handle_settings import HandleSettings
from deployments.replica_health import ReplicaHealth, RetryBudget

ANSWERS = (InvalidRequest, NotFound, Conflict, DeadlineExceeded)
"""Errors that speak of the request: any replica would say the same, and saying it is a sign of life."""
BUSY = (Overloaded, BackPressureError)
"""Refusals: another replica may have room, and the one that refused is none the worse for it."""
STALL_S = 0.03
"""A timer that fires later than this means that this process itself stood still, not its replicas."""


class NotTaken(Exception):
    """A replica could not be reached, or refused; or none was left to ask."""


PLACING: contextvars.ContextVar[Placing | None] = contextvars.ContextVar("placing", default=None)
"""The choice of a replica for the call that the running task makes; `deployments.routing` asks it."""


@dataclass
class Placing:
    """One attempt's choice of a replica, made at the last moment: when the call is about to be sent.

    Attributes:
        tried: replicas that the same call was given to before; shared by its attempts.
        wanted: the one replica to send to, when it is a trial.
        replica, actor_id, number: where the call went and its number in `health`; None and 0 before.
    """

    health: ReplicaHealth
    clock: Callable[[], float]
    tried: set[str] = field(default_factory=set)
    wanted: str | None = None
    replica: str | None = None
    actor_id: str | None = None
    number: int = 0

    def choose(self, present: Collection[str]) -> str | None:
        """The replica to send to, of those there are; None when all were tried."""
        now_s = self.clock()
        self.health.update(present)
        if self.wanted is None:
            self.replica = self.health.choose(self.tried, now_s)
        else:
            self.replica = self.wanted if self.wanted in present else None
        if self.replica is not None:
            self.tried.add(self.replica)
            self.number = self.health.sent(self.replica, now_s, trial=self.wanted is not None)
        return self.replica


class RemoteStage:
    """Calls ``run`` of a stage deployment; conforms to `serving.types.StageCaller`.

    A call that is late is given to a second replica and the first answer wins; one that fails is given to
    another. Stages only compute, so a call made twice does nothing twice. Extra attempts come out of a
    budget, so a stage that is slow as a whole is not made slower by its callers.
    """

    def __init__(
        self,
        stage: str,
        handle: DeploymentHandle,
        settings: HandleSettings | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._settings = settings or HandleSettings()
        self._stage = stage
        self._handle = handle
        self._method: Any = None
        self._clock = clock
        self._budget = RetryBudget(self._settings.retry_share, self._settings.retry_burst)
        self._trials: set[asyncio.Task[None]] = set()
        self.health = ReplicaHealth(self._settings)

    def connect(self) -> None:
        """Begin to learn which replicas there are, so that the first call need not wait for it.

        Whatever Serve's defaults are, the router runs on the running loop, for it shares `health` with the
        calls; and they go over a connection to the replica, which breaks the moment the replica dies.
        """
        if self._method is None:
            if not self._handle.is_initialized:
                self._handle._init(_run_router_in_separate_loop=False)
            self._method = self._handle.options(method_name="run", _by_reference=False)

    async def __call__(self, query: Any, timeout_s: float) -> Any:
        """The stage's answer.

        Raises:
            TimeoutError: none came within ``timeout_s``; the replicas are told to drop the work.
            Unavailable: the replicas died or take no call.
            Exception: what the stage itself raised, on every replica that was asked.
        """
        self.connect()
        self._budget.pay_in()
        race = _Race(self._attempt, query, self._clock() + timeout_s)
        try:
            async with asyncio.timeout(timeout_s):
                self._start(race)
                self._maybe_try_suspect(query)
                return await self._answer(race)
        finally:
            race.stop()

    def _start(self, race: _Race) -> None:
        race.start(Placing(self.health, self._clock, race.tried), self._clock())

    async def _answer(self, race: _Race) -> Any:
        """The first answer of the attempts; there are more of them when they are late or fail."""
        while True:
            finished = await self._finished(race)
            for attempt in finished:
                if attempt.exception() is None or isinstance(attempt.exception(), ANSWERS):
                    return attempt.result()
            if (not finished or not race.open) and self._may_ask_another(race):
                self._start(race)
            elif not race.open:
                raise self._failure(race.errors)

    async def _finished(self, race: _Race) -> set[asyncio.Task[Any]]:
        """Attempts that ended, or none when they are late."""
        while True:
            delay_s, asked_s = self.health.hedge_after_s, self._clock()
            finished = await race.wait(delay_s if race.attempts < self._settings.tries else None)
            if finished or self._clock() - asked_s - delay_s < STALL_S:
                return finished
            self.health.excuse(self._clock())

    def _may_ask_another(self, race: _Race) -> bool:
        return (
            race.attempts < self._settings.tries
            and self.health.has_spare(race.tried, self._clock())
            and self._budget.take()
        )

    def _failure(self, errors: list[BaseException]) -> BaseException:
        """What the caller is told: of several failures the first that the stage itself raised."""
        own = [error for error in errors if not _is_unreachable(error) and not isinstance(error, BackPressureError)]
        if own:
            return own[0]
        unavailable = Unavailable(f"stage {self._stage}: {', '.join(type(error).__name__ for error in errors)}")
        unavailable.__cause__ = errors[0]
        return unavailable

    def _maybe_try_suspect(self, query: Any) -> None:
        """Give a suspect a copy of this call when it is due; nobody waits for it."""
        suspect = self.health.due_for_trial(self._clock())
        if suspect is not None and self._budget.take():
            trial = asyncio.create_task(self._try(suspect, query), context=contextvars.Context())
            self._trials.add(trial)
            trial.add_done_callback(self._trials.discard)

    async def _try(self, suspect: str, query: Any) -> None:
        limit_s = self.health.silence_s
        placing = Placing(self.health, self._clock, wanted=suspect)
        try:
            async with asyncio.timeout(limit_s):
                await self._attempt(placing, query, limit_s)
        except Exception:  # noqa: S110 - the attempt has told `health`, and that is all a trial is for
            pass

    async def _attempt(self, placing: Placing, query: Any, timeout_s: float) -> Any:
        """One call of one replica; tells `health` how it ended."""
        PLACING.set(placing)
        response = self._method.remote(query, timeout_s)
        try:
            answer = await response
        except asyncio.CancelledError:
            if not _is_being_cancelled():
                self._told(placing, self.health.failed)
                raise NotTaken(f"replica {placing.replica} dropped the call") from None
            response.cancel()
            self._told(placing, self.health.given_up)
            raise
        except Exception as error:
            self._told(placing, self._judged(error, placing))
            raise
        self._told(placing, self.health.answered)
        return answer

    def _told(self, placing: Placing, verdict: Callable[[str, int, float], None]) -> None:
        if placing.replica is not None:
            verdict(placing.replica, placing.number, self._clock())

    def _judged(self, error: Exception, placing: Placing) -> Callable[[str, int, float], None]:
        if isinstance(error, ANSWERS + BUSY):
            return self.health.answered
        if _is_unreachable(error) and not _is_of_another(error, placing.actor_id):
            return self.health.unreachable
        return self.health.failed


class _Race:
    """The attempts at one call, each on a replica of its own.

    Each runs in an empty context: were it in that of a request, Serve would drop the call, which others of
    the same batch wait for, when that one request's caller leaves.
    """

    def __init__(
        self, attempt: Callable[[Placing, Any, float], Coroutine[Any, Any, Any]], query: Any, deadline_s: float
    ):
        self._attempt = attempt
        self._query = query
        self._deadline_s = deadline_s
        self.tried: set[str] = set()
        self.attempts = 0
        self.open: set[asyncio.Task[Any]] = set()
        self.errors: list[BaseException] = []

    def start(self, placing: Placing, now_s: float) -> None:
        self.attempts += 1
        work = self._attempt(placing, self._query, self._deadline_s - now_s)
        self.open.add(asyncio.get_running_loop().create_task(work, context=contextvars.Context()))

    async def wait(self, timeout_s: float | None) -> set[asyncio.Task[Any]]:
        """The attempts that ended since, when one does within ``timeout_s``."""
        done, self.open = await asyncio.wait(self.open, timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        self.errors += [error for each in done if (error := each.exception())]
        return done

    def stop(self) -> None:
        """Drop what is still under way."""
        for each in self.open:
            each.add_done_callback(lambda task: task.cancelled() or task.exception())
            each.cancel()


def _is_being_cancelled() -> bool:
    """Whether the running task is told to end, rather than what it waits for."""
    task = asyncio.current_task()
    return task is not None and task.cancelling() > 0


def _is_unreachable(error: BaseException) -> bool:
    """Whether a replica was lost, rather than raised something: Ray wraps what a replica raises."""
    lost = (NotTaken, RayActorError, DeploymentUnavailableError)
    return isinstance(error, lost) and not isinstance(error, RayTaskError)


def _is_of_another(error: Exception, actor_id: str | None) -> bool:
    """Whether the death is that of an actor that the replica itself had called."""
    dead = error.actor_id if isinstance(error, ActorDiedError) else None
    return dead is not None and actor_id is not None and dead != actor_id
