"""A replica with divided traffic looks how the release does, stops it when it does badly, and tells the supervisor."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from configs.errors import RecpoolError
from configs.release_settings import RolloutLimits
from deployments.releases.supervision import Rollouts
from serving.experiments.division import Division
from serving.experiments.judge import breach
from serving.experiments.roles import CHALLENGER, CHAMPION, SHADOW

log = logging.getLogger("recpool.rollout")
PERIOD_S = 0.5


class Divided(Protocol):
    """What is looked at; `serving.service.Service` has it."""

    @property
    def division(self) -> Division | None: ...


class Reporter:
    """Runs on the loop of the service it looks at.

    Its own judgement needs no supervisor, so a division that nobody watches, or that was made by `serve deploy`, hurts
    few callers: the champion answers all as soon as this replica has seen enough.

    Args:
        replica: names this one in what is told; it is asked when the first report is due.
    """

    def __init__(self, service: Divided, limits: RolloutLimits, rollouts: Rollouts, replica: Callable[[], str]):
        self._service, self._limits, self._rollouts, self._replica = service, limits, rollouts, replica
        self._task: asyncio.Task[None] | None = None
        self._said = ""

    def start(self) -> None:
        """Begin, unless it has."""
        self._task = self._task or asyncio.create_task(self._run())

    def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()

    async def look(self) -> None:
        """Judge and tell, once."""
        division = self._service.division
        if division is None or not division.compares:
            return
        judge(division, self._limits)
        try:
            stop = await self._rollouts.report(division.report(self._replica()))
            self._said = ""
        except RecpoolError as error:
            self._say(error.message)
            return
        if stop and not division.stopped:
            division.stop(stop)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(PERIOD_S)
            try:
                await self.look()
            except Exception as error:  # Ray's, while an actor starts again; the look must go on
                self._say(f"{type(error).__name__}: {error}")

    def _say(self, why: str) -> None:
        """The same trouble is told once."""
        if why != self._said:
            log.warning("nobody is told how the divided traffic does: %s", why)
        self._said = why


def judge(division: Division, limits: RolloutLimits) -> None:
    """Stop what does badly in this replica."""
    if division.stopped:
        return
    for role in (CHALLENGER, SHADOW):
        if role in division.sides:
            wrong = breach(division.tallies[CHAMPION], division.tallies[role], limits, compared=role == SHADOW)
            if wrong:
                log.warning("release %s gets nothing more: %s", division.sides[role].live.version, wrong)
                division.stop(wrong)
                return
