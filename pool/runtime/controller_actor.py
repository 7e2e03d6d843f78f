"""The controller as a Ray actor: a thread that ticks, and methods that answer beside it."""

from __future__ import annotations

import importlib
import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from configs.errors import ConfigError
from configs.pool_settings import PoolSettings
from pool.gate.cpu import set_class
from pool.policy.cost_summary import CostSummary
from pool.profiles import ProfileStore
from pool.release_costs import ReleaseCosts, ReleaseShape
from pool.runtime.actors import RayGround
from pool.runtime.applying import Places
from pool.runtime.controller import PoolController
from pool.runtime.controller_lock import ControllerLock
from pool.runtime.knowledge import Knowledge
from pool.runtime.messages import Claim, Claimed, Factory
from pool.runtime.state import Fenced
from pool.views import PoolReport, WorkloadReport
from pool.workload import WorkloadSpec

log = logging.getLogger("recpool.pool")
THREADS = 32
RETRY_S = 2.0
"""Between two tries to take over, or after a tick that failed for a reason not foreseen."""


@dataclass(frozen=True)
class ControllerOrder:
    """What a controller is started with.

    Attributes:
        folder: of the workloads and the journal; gates: of the gates, on every node.
        profiles: folder of measured latencies; what runs is measured into it.
        releases: whose graphs are counted.
        namespace: of the pool's actors.
        announcer: makes what is told which serving replicas stand by, of its argument; None: nobody is told.
    """

    settings: PoolSettings
    folder: Path
    gates: Path
    profiles: Path
    releases: ReleaseShape
    factory: Factory
    namespace: str
    announcer: Factory | None = None


class ControllerActor:
    """See `PoolController` for what the methods do."""

    def __init__(self, order: ControllerOrder):
        places = Places(order.folder, order.gates, order.factory, order.settings.runtime.checkpoint_s)
        costs = ReleaseCosts(order.releases)
        knowledge = Knowledge(order.settings, ProfileStore(order.profiles), costs)
        self._tick_s = order.settings.runtime.tick_s
        announce = _announce(order.announcer)
        ground = RayGround(order.namespace)
        self._controller = PoolController(order.settings, ground, places, knowledge, announce=announce)
        self._lock = ControllerLock(order.folder)
        set_class("guaranteed")
        threading.Thread(target=self._run, name="ticks", daemon=True).start()

    def submit(self, spec: WorkloadSpec) -> WorkloadReport:
        return self._controller.submit(spec)

    def workloads(self) -> tuple[WorkloadReport, ...]:
        return self._controller.workloads()

    def workload(self, name: str) -> WorkloadReport:
        return self._controller.workload(name)

    def preempt(self, name: str, reason: str) -> WorkloadReport:
        return self._controller.preempt(name, reason)

    def resume(self, name: str) -> WorkloadReport:
        return self._controller.resume(name)

    def cancel(self, name: str, reason: str) -> WorkloadReport:
        return self._controller.cancel(name, reason)

    def migrate(self, name: str, device: str) -> WorkloadReport:
        return self._controller.migrate(name, device)

    def warn(self, reason: str) -> None:
        self._controller.warn(reason)

    def report(self) -> PoolReport:
        return self._controller.report()

    def costs(self) -> CostSummary:
        return self._controller.costs()

    def claim(self, claim: Claim) -> Claimed:
        return self._controller.claim(claim)

    def unclaim(self, holder: str) -> None:
        self._controller.unclaim(holder)

    def _run(self) -> None:
        """The edge of the ticking thread: whatever fails is logged and tried again, until another takes over."""
        while (holder := self._lock.take()) is not None:
            self._controller.stand_by(f"another controller, {holder}, is at work; this one waits for its end")
            time.sleep(self._tick_s)
        try:
            while not self._try(self._controller.start):
                time.sleep(RETRY_S)
            while self._controller.closed is None:
                begun_s = time.monotonic()
                wait_s = self._tick_s if self._try(self._controller.tick) else RETRY_S
                time.sleep(max(0.0, begun_s + wait_s - time.monotonic()))
        except Fenced:  # it has been logged; the methods go on to say so
            self._lock.release()

    def _try(self, action: Callable[[], None]) -> bool:
        try:
            action()
        except Fenced:
            raise
        except ConfigError as error:
            log.error("%s", error.message)
        except Exception:
            log.exception("the pool's controller goes on after an error")
        else:
            return True
        return False


def _announce(announcer: Factory | None) -> Callable[[Mapping[str, bool]], None]:
    if announcer is None:
        return lambda roles: None
    module, _, name = announcer.path.partition(":")
    return getattr(importlib.import_module(module), name)(announcer.argument)
