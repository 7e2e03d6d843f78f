"""The simulated pool: real devices, a real ledger, and what the planner decided, carried out at once.

Live, the controller does this with actors that take their time; here a copy is there `start_s` after its grant.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from configs.plan_settings import Tier
from pool.device import Device, DeviceKind
from pool.ledger import Ledger
from pool.policy.cost_model import Prediction, predict_kinds
from pool.policy.decisions import Decision, Grant, Migrate, Park, Preempt, Release, Requeue, Resume, SetShares
from pool.policy.observation import DeviceView, LeaseView, PlannerState, PoolObservation, SliceMetrics, WorkloadView
from pool.policy.planner import tick
from pool.simulator.fleet import devices_of
from pool.simulator.scenario import Scenario, ServiceSettings, WorkSettings
from pool.workload import WorkloadPhase, WorkloadSpec, WorkloadState


@dataclass
class Copy:
    """A lease and whoever has it.

    Attributes:
        ready_s: from when it serves or works.
        weight_milli: its live share at the gate.
    """

    view: LeaseView
    ready_s: float
    weight_milli: int

    def is_ready(self, now_s: float) -> bool:
        return self.ready_s <= now_s


@dataclass
class Work:
    """How far interruptible work has come, in units.

    Attributes:
        saved: in its last checkpoint, written at saved_s.
        lost: that had to be done again.
        paused: it gets no turns. factor: by which its weight differs from the planner's.
    """

    settings: WorkSettings
    done: float = 0.0
    saved: float = 0.0
    saved_s: float = 0.0
    lost: float = 0.0
    paused: bool = False
    factor: float = 1.0

    @property
    def is_done(self) -> bool:
        return self.settings.units is not None and self.done >= self.settings.units

    def limited(self, units: int) -> int:
        """So many units, or those that are left."""
        return units if self.settings.units is None else min(units, math.ceil(self.settings.units - self.done))

    def advance(self, units: float, now_s: float) -> None:
        limit = self.settings.units
        self.done = self.done + units if limit is None else min(float(limit), self.done + units)
        if now_s - self.saved_s >= self.settings.checkpoint_s:
            self.save(now_s)

    def save(self, now_s: float) -> None:
        self.saved, self.saved_s = self.done, now_s

    def fall_back(self) -> None:
        """To the last checkpoint: its device is gone."""
        self.lost += self.done - self.saved
        self.done = self.saved


@dataclass
class Record:
    """A workload, as the planner is shown it."""

    view: WorkloadView
    owner: ServiceSettings | WorkSettings
    work: Work | None = None

    def goes(self, phase: WorkloadPhase, reason: str = "") -> None:
        if self.view.state.phase != phase:
            self.view = replace(self.view, state=replace(self.view.state, phase=phase, reason=reason))

    def wants(self, replicas: int) -> None:
        """Another number of copies."""
        spec = self.view.state.spec
        if spec.replicas != replicas:
            changed = spec.model_copy(update={"replicas": replicas})
            self.view = replace(self.view, state=replace(self.view.state, spec=changed))


class World:
    """Everything there is.

    Attributes:
        copies: by lease.
        down: devices that are lost, whether or not anybody knows yet. dead: those that are known to be.
        version: rises when something changes that requests or work depend on.
        made: decisions by their kind.
    """

    def __init__(self, scenario: Scenario):
        self.scenario = scenario
        kinds = scenario.kinds
        memory: dict[Tier, int] = {kind: each.memory_bytes for kind, each in kinds.items()}
        prices: dict[Tier, float] = {kind: each.price_per_hour for kind, each in kinds.items()}
        self.devices: dict[str, Device] = {each.id: each for each in devices_of(scenario.fleet, memory, prices)}
        self._views = {name: DeviceView(device) for name, device in self.devices.items()}
        self.ledger = Ledger(self.devices.values())
        self.records: dict[str, Record] = {}
        self.copies: dict[str, Copy] = {}
        self.of: dict[str, dict[str, Copy]] = {}
        self.down: set[str] = set()
        self.dead: set[str] = set()
        self.version = 0
        self.made: Counter[str] = Counter()
        self.state = PlannerState()
        self._predicted = {each.name: self._predict(each) for each in scenario.services}

    def submit(self, owner: ServiceSettings | WorkSettings, now_s: float) -> None:
        """Declare a service, or all copies of a work."""
        if isinstance(owner, ServiceSettings):
            self._enter(owner.spec, owner, now_s, self._predicted[owner.name])
            return
        for number in range(owner.copies):
            name = owner.name if owner.copies == 1 else f"{owner.name}.{number}"
            spec = WorkloadSpec(
                name=name,
                kind=owner.kind,
                model=owner.name,
                priority=owner.priority,
                min_milli=owner.min_milli,
                desired_milli=owner.desired_milli,
                memory_bytes=owner.memory_bytes,
                tier=owner.tier,
                team=owner.team,
            )
            self._enter(spec, owner, now_s, {})
            self.records[name].work = Work(owner, saved_s=now_s)

    def observe(self, metrics: Mapping[str, SliceMetrics]) -> PoolObservation:
        return PoolObservation(
            tuple(self._views.values()),
            tuple(record.view for record in self.records.values()),
            tuple(copy.view for copy in self.copies.values()),
            metrics,
        )

    def tick(self, metrics: Mapping[str, SliceMetrics], now_s: float) -> tuple[Decision, ...]:
        """One tick of the planner that runs live; what it decided is not carried out yet."""
        decisions, self.state = tick(self.observe(metrics), self.state, now_s, self.scenario.pool)
        return decisions

    def apply(self, decisions: Iterable[Decision], now_s: float) -> None:
        """Carry out decisions in their order."""
        for made in decisions:
            self.made[type(made).__name__] += 1
            match made:
                case Grant() | Resume():
                    self._start(made, now_s)
                case Release():
                    self._end(made.lease)
                case Requeue():
                    self._fall_back(made.workload)
                    self._end(made.lease)
                    self._goes(made.workload, "queued", made.reason)
                case Preempt():
                    self._save(made.workload, now_s)
                    self._end(made.lease)
                    self._goes(made.workload, "preempted", made.reason)
                case Migrate():
                    self._move(made, now_s)
                case SetShares():
                    self._weigh(made)
                case Park():
                    self._goes(made.workload, "parked", made.reason)
                case _:
                    raise AssertionError(f"no copy stands by here, but the planner decided {made}")
            self.version += 0 if isinstance(made, SetShares) else 1

    def lose(self, devices: Iterable[str]) -> None:
        """Devices fail; nobody knows yet."""
        self.down.update(devices)
        self.version += 1

    def notice(self, devices: Iterable[str], is_dead: bool) -> None:
        """Everybody knows that devices are dead, or that they are back."""
        for name in devices:
            self._views[name] = replace(self._views[name], health="dead" if is_dead else "alive")
            if is_dead:
                self.dead.add(name)
            else:
                self.dead.discard(name)
                self.down.discard(name)
        self.version += 1

    def warm(self, now_s: float) -> None:
        """Whatever is starting is there at once: the scenario begins with a pool that runs."""
        for copy in self.copies.values():
            copy.ready_s = min(copy.ready_s, now_s)
        self.settle(now_s)

    def settle_work(self) -> None:
        """Work that is done has succeeded."""
        for record in self.records.values():
            if record.work is not None and record.work.is_done and record.view.state.phase != "succeeded":
                record.goes("succeeded", "all units are done")
                self.version += 1

    def settle(self, now_s: float) -> None:
        """Workloads of which a copy has become ready run."""
        for record in self.records.values():
            state = record.view.state
            if state.phase in ("starting", "migrating"):
                held = self.of.get(state.spec.name, {})
                if any(copy.is_ready(now_s) for copy in held.values()):
                    record.goes("running")
        self.version += 1

    def next_ready_s(self, now_s: float) -> float:
        """When the next copy will be ready; infinite where none is starting."""
        return min((copy.ready_s for copy in self.copies.values() if copy.ready_s > now_s), default=math.inf)

    def serving(self, service: str, now_s: float) -> list[Copy]:
        """Copies that could answer now: ready, on devices that live."""
        held = self.of.get(service, {}).values()
        return [copy for copy in held if copy.is_ready(now_s) and copy.view.device not in self.down]

    def _predict(self, service: ServiceSettings) -> Mapping[DeviceKind, Prediction]:
        return predict_kinds(service.spec, service.profiles, None, self.scenario.pool)

    def _enter(
        self,
        spec: WorkloadSpec,
        owner: ServiceSettings | WorkSettings,
        now_s: float,
        predictions: Mapping[DeviceKind, Prediction],
    ) -> None:
        assert spec.name not in self.records, f"{spec.name} is there twice"
        view = WorkloadView(WorkloadState(spec), queued_s=now_s, predictions=predictions)
        self.records[spec.name] = Record(view, owner)

    def _start(self, made: Grant | Resume, now_s: float) -> None:
        ledger = self.ledger
        lease = ledger.grant(made.workload, made.device, made.milli, made.memory_bytes, ledger.epoch)
        view = LeaseView(lease.id, made.workload, made.device, made.milli, made.memory_bytes, since_s=now_s)
        copy = Copy(view, now_s + self._start_s(made.workload, made.device), made.milli)
        self.copies[lease.id] = copy
        self.of.setdefault(made.workload, {})[lease.id] = copy
        if self.records[made.workload].view.state.phase != "running":
            self._goes(made.workload, "starting", made.reason)

    def _start_s(self, workload: str, device: str) -> float:
        owner = self.records[workload].owner
        return owner.start_s if isinstance(owner, WorkSettings) else owner.profiles[self.devices[device].kind].start_s

    def _move(self, made: Migrate, now_s: float) -> None:
        self._save(made.workload, now_s)
        self.ledger.move(made.lease, made.device, self.ledger.epoch)
        copy = self.copies[made.lease]
        copy.view = replace(copy.view, device=made.device, since_s=now_s)
        copy.ready_s, copy.weight_milli = now_s + self._start_s(made.workload, made.device), made.milli

    def _end(self, lease: str) -> None:
        self.ledger.release(lease, self.ledger.epoch)
        copy = self.copies.pop(lease)
        del self.of[copy.view.workload][lease]

    def _weigh(self, made: SetShares) -> None:
        for lease, weight in made.weights:
            if lease in self.copies:  # not one that a decision before this one ended
                self.copies[lease].weight_milli = weight

    def _save(self, workload: str, now_s: float) -> None:
        work = self.records[workload].work
        if work is not None:
            work.save(now_s)

    def _fall_back(self, workload: str) -> None:
        work = self.records[workload].work
        if work is not None:
            work.fall_back()

    def _goes(self, workload: str, phase: WorkloadPhase, reason: str) -> None:
        self.records[workload].goes(phase, reason)
