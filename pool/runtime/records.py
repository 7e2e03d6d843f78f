"""What the controller remembers of each workload, and how it goes from phase to phase."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from configs.errors import Conflict
from pool.runtime.messages import HostStatus
from pool.views import WorkloadReport
from pool.work import Progress
from pool.workload import NEXT_PHASES, WorkloadPhase, WorkloadSpec, WorkloadState

OVER: frozenset[WorkloadPhase] = frozenset({"succeeded", "failed", "cancelled"})
"""Phases whose name another workload may take."""
PASSING: frozenset[WorkloadPhase] = frozenset({"queued", "starting", "running"})
"""Phases that a workload may pass through within one tick, without anybody seeing it."""


@dataclass
class Record:
    """One workload.

    Attributes:
        queued_s, crashes_s: monotonic; ``queued_s`` is since when it waits or waited first.
        held: preempted by a person, and waits for one to resume it.
        placement: why its device was chosen.
    """

    state: WorkloadState
    queued_s: float
    crashes_s: tuple[float, ...] = ()
    held: bool = False
    progress: Progress | None = None
    result: Mapping[str, Any] = field(default_factory=dict)
    placement: str = ""

    @property
    def spec(self) -> WorkloadSpec:
        return self.state.spec

    @property
    def name(self) -> str:
        return self.state.spec.name

    @property
    def phase(self) -> WorkloadPhase:
        return self.state.phase

    def goes(self, phase: WorkloadPhase, reason: str, device: str | None = None) -> None:
        """Enter a phase that follows, perhaps through passing ones."""
        if phase != self.phase:
            assert _leads(self.phase, phase), f"{self.name}: {self.phase} to {phase}"
        self.state = replace(self.state, phase=phase, reason=reason, device=device or self.state.device)

    def require(self, phase: WorkloadPhase, verb: str) -> None:
        """Raise Conflict when its phase does not lead to another; says which do."""
        if phase not in NEXT_PHASES[self.phase]:
            allowed = ", ".join(each for each, after in NEXT_PHASES.items() if phase in after)
            raise Conflict(f"{self.name} is {self.phase} and cannot {verb}; that can: {allowed}")

    def crashed(self, now_s: float, reason: str, window_s: float) -> None:
        """Back into the queue, counted."""
        self.crashes_s = (*(at_s for at_s in self.crashes_s if now_s - at_s < window_s), now_s)
        self.goes("queued", f"crashed: {reason}")
        self.state = replace(self.state, restarts=len(self.crashes_s))

    def told(self, status: HostStatus) -> None:
        """What its host says while it runs."""
        self.progress = status.progress or self.progress
        if status.phase == "running" and self.phase == "starting":
            resumed = "goes on from its checkpoint" if status.resumed else "runs"
            self.goes("running", f"{resumed} on {status.lease.device}", status.lease.device)
        if status.stands and self.phase == "running":
            self.goes("running", f"its work is done; it stands by on {status.lease.device}")
            self.result = status.result

    def report(self, now_s: float) -> WorkloadReport:
        spec, progress = self.spec, self.progress
        return WorkloadReport(
            name=self.name,
            kind=spec.kind,
            priority=spec.rank,
            phase=self.phase,
            reason=self.state.reason,
            device=self.state.device,
            restarts=self.state.restarts,
            queued_s=max(0.0, now_s - self.queued_s) if self.phase in ("queued", "preempted") else 0.0,
            spec=spec.model_dump(mode="json"),
            progress=progress.share if progress is not None and progress.total else None,
            result=self.result,
            placement=self.placement,
        )


def _leads(before: WorkloadPhase, after: WorkloadPhase) -> bool:
    """Whether a phase follows another, perhaps with passing ones in between; what is over is never left."""
    reached: set[WorkloadPhase] = {before}
    border: list[WorkloadPhase] = [before]
    while border:
        following = NEXT_PHASES[border.pop()]
        if after in following:
            return True
        for each in following:
            if each in PASSING and each not in reached:
                reached.add(each)
                border.append(each)
    return False
