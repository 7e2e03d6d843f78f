"""One rollout, from the gate to the promotion or back; whatever goes wrong, the champion serves all traffic again.

What is decided goes to the history of the release, so that anybody can see later what happened and why.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from configs.errors import Conflict, NotFound, RecpoolError
from configs.release_settings import ReleaseSettings
from deployments.releases.promotion import undivided
from deployments.releases.reports import Reports
from deployments.releases.views import BEGUN, PROMOTED, ROLLED_BACK, STOPPED, Phase, RolloutView
from pool.repository import CHALLENGER, CHAMPION, SHADOW, ReleaseRepository
from serving.experiments.rollout import Decision, RolloutPlan, Seen, Step, decide, gate_fault
from serving.experiments.spec import Traffic

log = logging.getLogger("recpool.rollout")
LOOK_S = 0.25
SILENCE_S = 20.0
"""After which a step about which no replica tells anything is given up: nobody would notice a bad release."""
TRIES = 10


class Service(Protocol):
    """The running service; `deployments.releases.served.Served` has it. Both block."""

    def choice(self) -> dict[str, Any]: ...
    def choose(self, choice: Mapping[str, Any]) -> None: ...


class Checks(Protocol):
    """What is looked at before a release gets any traffic; `deployments.releases.offline_checks` has it."""

    async def evaluate(self, versions: tuple[str, ...]) -> Mapping[str, Any]: ...
    async def warm_up(self, version: str) -> Mapping[str, Any]: ...


class RollBack(Exception):
    """The release must go, for the reason given."""


class RolloutRun:
    """One rollout. `run` it once; `view` may be read meanwhile, and `cancel` called.

    Args:
        reports: what replicas tell; it is cleared at each step.
        look_s: seconds between two looks at them.
    """

    def __init__(
        self,
        plan: RolloutPlan,
        settings: ReleaseSettings,
        repository: ReleaseRepository,
        service: Service,
        checks: Checks,
        reports: Reports,
        clock: Callable[[], float] = time.monotonic,
        look_s: float = LOOK_S,
    ):
        self._plan, self._settings, self._repository = plan, settings, repository
        self._service, self._checks, self._reports = service, checks, reports
        self._clock, self._look_s = clock, look_s
        self._cancelled = ""
        self._figures: dict[str, Any] = {}
        self.traffic: dict[str, Any] = {}
        """The last division, as plain values."""
        self.view = RolloutView(plan.version, phase="starting")

    @property
    def stop_reason(self) -> str:
        """Why replicas should give the release nothing more, at once; empty while they should."""
        return self.view.reason if self.view.phase in ("rolled_back", "stopped") else self._cancelled

    def cancel(self, reason: str) -> None:
        """Roll back as soon as possible."""
        self._cancelled = self._cancelled or reason

    def begin(self) -> None:
        """Check that it can be done at all. Raises NotFound, ArtifactError or Conflict, and nothing has happened."""
        champion = self._repository.champion()
        if champion is None:
            raise NotFound("no release is the champion; say `recpool release promote VERSION` for the first one")
        if champion == self._plan.version:
            raise Conflict(f"release {champion} is the champion already")
        self._repository.verify(self._plan.version)
        self.view = replace(self.view, champion=champion)

    async def run(self) -> RolloutView:
        """To the end; returns how it ended."""
        plan, champion = self._plan, self.view.champion
        self._note(BEGUN, f"beside champion {champion}, from {plan.begin_with} on")
        before: dict[str, Any] | None = None
        try:
            await self._check_offline()
            before = await self._undivided()
            for step in plan.steps():
                await self._watch(step, before)
            await self._promote(before)
        except RollBack as why:
            await self._end(before, str(why))
        except Exception as error:  # whatever broke: a release that nobody watches must not serve
            log.exception("the rollout of release %s broke off", plan.version)
            await self._end(
                before, error.message if isinstance(error, RecpoolError) else f"{type(error).__name__}: {error}"
            )
        return self.view

    async def _undivided(self) -> dict[str, Any]:
        """What the service is told now. Raises RollBack when that is not to let the champion serve all."""
        choice, champion = await asyncio.to_thread(self._service.choice), self.view.champion
        if choice.get("version") not in (None, champion):
            raise RollBack(
                f"the service serves release {choice['version']} by its user_config, and the champion is {champion}; "
                "promote one of them first"
            )
        if Traffic.model_validate(choice.get("traffic") or {}).versions:
            raise RollBack("its traffic is divided already, by its user_config; end that first")
        return {**choice, "version": champion}

    async def _check_offline(self) -> None:
        """Raise RollBack for a release that is worse on held-out events, or does not answer."""
        plan, champion = self._plan, self.view.champion
        if plan.wants("gate"):
            self._enter("gate", None)
            figures = await self._uncancelled(self._checks.evaluate((champion, plan.version)))
            self._figures = dict(figures)
            fault = gate_fault(champion, plan.version, figures, self._settings.gate)
            if fault:
                raise RollBack(f"stopped at the gate: {fault}")
            self._note("passed the gate", "", self._figures)
        if plan.wants("warmup"):
            self._enter("warmup", None)
            try:
                result = await self._uncancelled(self._checks.warm_up(plan.version))
            except RecpoolError as error:
                raise RollBack(f"stopped at warm-up: {error.message}") from error
            self._note("warmed up", f"{result.get('checked', 0)} answers checked")

    async def _watch(self, step: Step, before: Mapping[str, Any]) -> None:
        """Divide the traffic, and return once the step was good for long enough. Raises RollBack when it is not."""
        version = self._plan.version
        traffic = step.traffic(version, Traffic.model_validate(before.get("traffic") or {}))
        self._reports.clear()
        self._enter(step.stage, step.share)
        others = {CHALLENGER: None, SHADOW: None, step.role: version}
        await asyncio.to_thread(
            self._repository.change, f"{step.stage} at {step.share:.1%}", version, others,
            expected={CHAMPION: self.view.champion},
        )  # fmt: skip
        self.traffic = traffic.model_dump(mode="json")
        choice = {**before, "traffic": self.traffic}
        choosing = asyncio.ensure_future(asyncio.to_thread(self._service.choose, choice))
        try:
            decision = await self._judged(step, traffic, choosing)
        finally:
            await asyncio.wait({choosing})  # Serve takes one document after the other
        self._note(f"{step.stage} at {step.share:.1%} done", decision.reason, self._summary())

    async def _judged(self, step: Step, traffic: Traffic, choosing: asyncio.Future[None]) -> Decision:
        """The decision to go on. Raises RollBack for the other one, and whatever Serve says to the division."""
        began_s = last_s = self._clock()
        while True:
            await asyncio.sleep(self._look_s)
            now_s = self._clock()
            if choosing.done():
                choosing.result()
            else:
                began_s = now_s  # it counts from when all replicas have taken it up
            seen = self._reports.seen(traffic)
            last_s = max(last_s, self._reports.last_s or 0.0)
            decision = decide(self._plan, step, seen, self._settings.limits, now_s - began_s)
            self._look(seen, decision)
            if self._cancelled or decision.what == "roll_back":
                self.cancel(decision.reason)  # replicas stop at their next report, before Serve tells them
                raise RollBack(self._cancelled)
            if choosing.done() and now_s - max(last_s, began_s) > SILENCE_S:
                raise RollBack(f"no replica has told anything for {SILENCE_S:g} s")
            if choosing.done() and decision.what == "go_on":
                return decision

    async def _promote(self, before: dict[str, Any]) -> None:
        version, champion = self._plan.version, self.view.champion
        self._enter("promote", None)
        aliases = {CHAMPION: version, CHALLENGER: None, SHADOW: None}
        await asyncio.to_thread(
            self._repository.change, PROMOTED, version, aliases, self.view.reason or "by a rollout",
            {CHAMPION: champion},
        )  # fmt: skip
        try:
            await asyncio.to_thread(self._service.choose, undivided(before, version))
        except Exception:
            await asyncio.to_thread(
                self._repository.change, "not served", version, {CHAMPION: champion}, "", {CHAMPION: version}
            )
            raise
        self._tell("promoted", f"release {version} serves, {champion} is what a rollback returns to")

    async def _end(self, before: Mapping[str, Any] | None, reason: str) -> None:
        """Give all traffic back to the champion, and keep why."""
        self.cancel(reason)
        self.view = replace(self.view, reason=reason)
        summary = {**self._figures, **self._summary()}
        if before is not None:
            try:  # somebody may have promoted another one meanwhile
                now = self._repository.champion() or self.view.champion
                await asyncio.to_thread(self._service.choose, {**before, "version": now})
            except RecpoolError as error:
                reason = f"{reason}; Serve was not told: {error.message}"
        try:
            self._forget(ROLLED_BACK if before is not None else STOPPED, reason, summary)
        except Exception as error:  # the traffic is back all the same, and the next rollout must not wait for this one
            log.exception("what became of release %s is not kept", self._plan.version)
            reason = f"{reason}; its aliases stay: {error}"
        self._tell("rolled_back" if before is not None else "stopped", reason)

    def _forget(self, event: str, reason: str, figures: Mapping[str, Any]) -> None:
        """Take the release's aliases away, whoever else changes some."""
        for attempt in range(TRIES):
            table = self._repository.aliases()
            mine = {alias: None for alias, each in table.items() if each == self._plan.version and alias != CHAMPION}
            try:
                self._repository.change(event, self._plan.version, mine, reason, figures=figures)
                return
            except Conflict:
                if attempt == TRIES - 1:
                    raise

    async def _uncancelled(self, check: Any) -> Mapping[str, Any]:
        """What a check finds; it is given up when the rollout is cancelled."""
        task = asyncio.ensure_future(check)
        while not task.done():
            await asyncio.wait({task}, timeout=self._look_s)
            if self._cancelled and not task.done():
                task.cancel()
                await asyncio.wait({task})
                raise RollBack(self._cancelled)
        return task.result()

    # --- telling

    def _enter(self, phase: Phase, share: float | None) -> None:
        self.view = replace(self.view, phase=phase, share=share, seen={}, reason="")
        told = f"{phase}{f' at {share:.1%}' if share is not None else ''}"
        self.view = replace(self.view, told=(*self.view.told, told))

    def _look(self, seen: Seen, decision: Decision) -> None:
        found = {role: tally.summary() for role, tally in seen.tallies.items()}
        self.view = replace(self.view, seen=found, reason=decision.reason)

    def _tell(self, phase: Phase, reason: str) -> None:
        told = f"{phase.replace('_', ' ')}: {reason}"
        self.view = replace(self.view, phase=phase, share=None, reason=reason, told=(*self.view.told, told))

    def _note(self, event: str, reason: str, figures: Mapping[str, Any] | None = None) -> None:
        self._repository.note(event, self._plan.version, reason, figures)

    def _summary(self) -> dict[str, Any]:
        return {"seen": dict(self.view.seen), "plan": self._plan.model_dump(mode="json")}
