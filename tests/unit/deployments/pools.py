"""A controller that keeps its workloads in a dict, behind what looks like a handle to an actor; and a pool to show."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from configs.errors import Conflict, NotFound
from pool.policy.cost_summary import CostLine, CostSummary
from pool.views import DecisionReport, DeviceReport, PoolReport, SliceReport, WorkloadReport
from pool.workload import NEXT_PHASES, WorkloadPhase, WorkloadSpec

GIB = 2**30


def workload(name: str, **changed: Any) -> WorkloadReport:
    spec = WorkloadSpec(name=name, kind=changed.pop("kind", "finetune"), model="fine")
    stands = {"phase": "queued", "reason": "", "device": None, "restarts": 0, "queued_s": 0.0, **changed}
    return WorkloadReport(name=name, kind=spec.kind, priority=spec.rank, spec=spec.model_dump(mode="json"), **stands)


def slice_of(kind: str, metered_milli: int, leased_milli: int, **more: Any) -> SliceReport:
    priority = {"inference": "guaranteed", "finetune": "best_effort"}.get(kind, "burstable")
    given = {
        "lease": f"1-{leased_milli}",
        "workload": f"{kind}-1",
        "version": None,
        "share_milli": leased_milli,
        "memory_bytes": GIB,
        **more,
    }
    return SliceReport(
        kind=kind,
        priority=priority,
        metered_milli=metered_milli,
        leased_milli=leased_milli,
        **given,  # type: ignore
    )


def device(id: str = "gpu-0", slices: tuple[SliceReport, ...] = (), **changed: Any) -> DeviceReport:
    leased = sum(each.leased_milli for each in slices)
    held = sum(each.memory_bytes for each in slices)
    fields = {
        "kind": "gpu",
        "label": "gpu (emulated)",
        "emulated": True,
        "node": "n1",
        "health": "alive",
        "memory_bytes": 8 * GIB,
        "free_milli": 1000 - leased,
        "free_bytes": 8 * GIB - held,
        **changed,
    }
    return DeviceReport(id=id, slices=slices, **fields)


def full_report() -> PoolReport:
    """A device that serves, warms up and trains; one that is idle; one workload that waits and two decisions."""
    slices = (
        slice_of("inference", 300, 200, queue=3, headroom=0.25, version="7"),
        slice_of("warmup", 400, 400, progress=0.6),
        slice_of("finetune", 300, 300, progress=0.125, steps_per_s=41.5, preemptions=17),
    )
    return PoolReport(
        epoch=4,
        age_s=0.2,
        devices=(device("gpu-0", slices), device("cpu-0", kind="cpu", label="cpu", emulated=False)),
        workloads=(
            workload("inference-1", kind="inference", phase="running", device="gpu-0"),
            workload("nightly", phase="preempted", reason="gave way to inference-1", queued_s=12.0, progress=0.4),
        ),
        decisions=(
            DecisionReport(1_000.0, "grant inference-1 on gpu-0", "it meets its SLO there"),
            DecisionReport(2_000.0, "preempt nightly", "inference-1 needs its place"),
        ),
    )


def month() -> CostSummary:
    """Two devices at 1.50 an hour together; serving, and a fine-tune of a team."""
    serving = CostLine("gateway", 2.5, 0.5, 3.4, 2.0, 4.0)
    tuning = CostLine("nightly", 1.25, 0.25, 1.7, 1.25, 2.0)
    return CostSummary(
        month="2026-11",
        per_hour=1.5,
        observed_hours=3.3,
        unobserved_hours=0.5,
        total=5.0,
        idle=1.25,
        so_far=5.75,
        expected=1_080.0,
        based_on_hours=3,
        dedicated=6.0,
        saved=1.0,
        workloads=(serving, tuning),
        models=(CostLine("funnel", 2.5, 0.5, 3.4, 2.0), CostLine("fine", 1.25, 0.25, 1.7, 1.25)),
        scenes=(CostLine("home", 2.0, 0.4), CostLine("(none)", 0.5, 0.1)),
        teams=(CostLine("(none)", 2.5, 0.5), CostLine("ads", 1.25, 0.25)),
    )


class FakeController:
    """Has the methods of the controller.

    Attributes:
        shown: what `report` answers.
        prices: what `costs` answers; None: a device has no price.
        error: raised by every method, when set.
    """

    def __init__(self) -> None:
        self.shown = full_report()
        self.prices: CostSummary | None = None
        self.error: Exception | None = None
        self.known: dict[str, WorkloadReport] = {}
        self.specs: list[WorkloadSpec] = []

    def report(self) -> PoolReport:
        return self.shown

    def costs(self) -> CostSummary:
        if self.prices is None:
            raise Conflict("pool.devices.0.price_per_hour: gpu-0 has no price, so nothing is charged; state it")
        return self.prices

    def workloads(self) -> tuple[WorkloadReport, ...]:
        return tuple(self.known.values())

    def workload(self, name: str) -> WorkloadReport:
        if name not in self.known:
            raise NotFound(f"no workload {name!r}; known: {sorted(self.known)}")
        return self.known[name]

    def submit(self, spec: WorkloadSpec) -> WorkloadReport:
        if spec.name in self.known:
            raise Conflict(f"workload {spec.name} is live")
        self.specs.append(spec)
        self.known[spec.name] = replace(workload(spec.name, kind=spec.kind), spec=spec.model_dump(mode="json"))
        return self.known[spec.name]

    def preempt(self, name: str, reason: str) -> WorkloadReport:
        return self._turn(name, "preempted", reason)

    def resume(self, name: str) -> WorkloadReport:
        return self._turn(name, "queued", "resumed")

    def cancel(self, name: str, reason: str) -> WorkloadReport:
        return self._turn(name, "cancelled", reason)

    def migrate(self, name: str, device: str) -> WorkloadReport:
        if device not in [each.id for each in self.shown.devices]:
            raise NotFound(f"no device {device!r}; known: {[each.id for each in self.shown.devices]}")
        return self._turn(name, "migrating", f"to {device}")

    def _turn(self, name: str, phase: WorkloadPhase, reason: str) -> WorkloadReport:
        found = self.workload(name)
        if phase not in NEXT_PHASES[found.phase]:
            raise Conflict(f"{name} is {found.phase}; it may become {NEXT_PHASES[found.phase]}")
        self.known[name] = replace(found, phase=phase, reason=reason)
        return self.known[name]


class Current:
    """In the place of what the running test has as ``target``: to build an application takes longer than a test."""

    target: Any = None

    def __getattr__(self, method: str) -> Any:
        return getattr(self.target, method)


class FakeHandle:
    """What Ray gives for an actor: ``handle.method.remote(...)`` is awaited; errors are wrapped by ``wrap``."""

    def __init__(self, controller: FakeController, wrap: Callable[[Exception], Exception] = lambda error: error):
        self._controller = controller
        self._wrap = wrap

    def __getattr__(self, method: str) -> Any:
        return _Method(self._controller, method, self._wrap)


class _Method:
    def __init__(self, controller: FakeController, method: str, wrap: Callable[[Exception], Exception]):
        self._controller, self._method, self._wrap = controller, method, wrap

    def remote(self, *arguments: Any) -> Awaitable[Any]:
        async def answer() -> Any:
            if self._controller.error:
                raise self._controller.error
            try:
                return getattr(self._controller, self._method)(*arguments)
            except Exception as error:
                raise self._wrap(error) from error

        return answer()
