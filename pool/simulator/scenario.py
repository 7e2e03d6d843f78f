"""What is simulated: devices, services, other work, demand and failures, as one checked tree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import AwareDatetime, Field, model_validator

from configs.branch import Branch
from configs.plan_settings import Tier, Tiers
from configs.pool_settings import PoolSettings
from pool.policy.latency import LatencyProfile
from pool.simulator.fleet import MOST_DEVICES, Level, Shelf, device_count, site_names
from pool.workload import WorkloadKind, WorkloadName, WorkloadPriority, WorkloadSpec

DAY_S = 86_400.0
Mode = Literal["auto", "requests", "intervals"]
Positive = Annotated[float, Field(gt=0)]
FORECAST_STEPS_S = (10.0, 15.0, 20.0, 30.0, 50.0, 60.0, 100.0, 150.0, 300.0)
"""Of an autoscaler's forecast; the shortest that is not below the scenario's interval is taken."""
SOURCES = ("rate_per_s", "points", "trace", "arrivals")
NotNegative = Annotated[float, Field(ge=0)]


class KindSettings(Branch):
    """One kind of device."""

    start_s: float = Field(gt=0, le=86_400, description="from the order of a device, or its repair, until it is there")
    price_per_hour: float = Field(gt=0, le=1e6, description="of a whole device")
    memory_bytes: int = Field(default=1 << 36, ge=0, le=1 << 45)
    lanes: int = Field(default=1, ge=1, le=1_024, description="batches computed at once: cores of a CPU device")
    emulated: bool = Field(default=False, description="cores stand in for it; every view says so")


class ReplicaProfile(LatencyProfile):
    """Measured batch times of a service on one kind of device, and how long a replica takes to start there."""

    start_s: float = Field(gt=0, le=86_400, description="from the decision to the first answer of a new replica")


class DemandSettings(Branch):
    """Requests over time: one of a plain rate, rates at some times, a trace of counts, and one of single arrivals."""

    rate_per_s: float | None = Field(default=None, ge=0, le=1e9, description="the same all the time")
    points: tuple[tuple[NotNegative, NotNegative], ...] | None = Field(
        default=None, min_length=1, description="seconds after the start and rate then; a straight line in between"
    )
    trace: Path | None = Field(default=None, description="CSV of counts; see pool/traces.py for what is repaired")
    arrivals: Path | None = Field(default=None, description="CSV of single requests by their time")
    time: str = Field(default="timestamp", description="column of a trace's times")
    count: str = Field(default="value", description="column of a trace's counts")
    skip_s: float = Field(default=0.0, ge=0, description="seconds of the trace that are left out at its beginning")
    speed: float = Field(default=1.0, gt=0, le=10_000, description="seconds of the trace played in one second")
    mean_per_s: float | None = Field(
        default=None, gt=0, le=1e9, description="scale counts to this mean of what is played"
    )
    peak_per_s: float | None = Field(default=None, gt=0, le=1e9, description="scale counts to this highest rate")

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        sources = [name for name in SOURCES if getattr(self, name) is not None]
        if len(sources) != 1:
            raise ValueError(f"{', '.join(SOURCES)}: state exactly one of these (found {', '.join(sources) or 'none'})")
        times = [at_s for at_s, _ in self.points or ()]
        for row, (before, after) in enumerate(pairwise(times), start=1):
            if after <= before:
                raise ValueError(
                    f"points.{row}: {after:g} s is not after {before:g} s; state times in their order, once"
                )
        scales = [name for name in ("mean_per_s", "peak_per_s") if getattr(self, name) is not None]
        if len(scales) > (1 if self.trace is not None else 0):
            raise ValueError(f"{scales[-1]}: states how counts are scaled; at most one such field, and of a trace only")
        return self


class ScaleSettings(Branch):
    """Between which numbers the live autoscaler may choose."""

    min_replicas: int = Field(default=1, ge=1, le=1_000)
    max_replicas: int = Field(ge=1, le=1_000)
    quantile: float = Field(default=0.9, gt=0.5, lt=0.99, description="of the forecast that is provided for")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas: {self.min_replicas} is more than max_replicas, {self.max_replicas}")
        return self


class ServiceSettings(Branch):
    """An online service: guaranteed replicas that answer requests in batches."""

    name: WorkloadName
    model: str = Field(default="release", min_length=1, max_length=200)
    tier: Tiers = Field(default=("gpu",), min_length=1)
    replicas: int = Field(default=1, ge=1, le=1_000, description="at the start; an autoscaler may change it")
    min_milli: int = Field(default=100, ge=1, le=1_000, description="lease of a replica")
    memory_bytes: int = Field(default=0, ge=0, le=1 << 45)
    slo_ms: float = Field(gt=0, le=60_000, description="an answer later than this is a violation")
    max_wait_ms: float = Field(default=250, gt=0, le=60_000, description="a request that would wait longer is shed")
    max_batch_rows: int = Field(default=32, ge=1, le=4_096)
    overhead_ms: float = Field(
        default=0.0, ge=0, le=1_000, description="of an answer outside its batch: proxy, network"
    )
    profiles: dict[Tier, ReplicaProfile] = Field(min_length=1, description="by kind of device")
    demand: DemandSettings
    autoscale: ScaleSettings | None = Field(default=None, description="absent: the number of replicas stays")
    team: str = Field(default="", max_length=100)

    @model_validator(mode="after")
    def _measured(self) -> Self:
        missing = [kind for kind in self.tier if kind not in self.profiles]
        if missing:
            raise ValueError(f"profiles.{missing[0]}: not measured; measure it, or take {missing[0]} out of tier")
        return self

    @property
    def spec(self) -> WorkloadSpec:
        """As it would be declared live."""
        return WorkloadSpec(
            name=self.name,
            kind="inference",
            model=self.model,
            min_milli=self.min_milli,
            memory_bytes=self.memory_bytes,
            slo_ms=self.slo_ms,
            tier=self.tier,
            replicas=self.replicas,
            team=self.team,
        )


class WorkSettings(Branch):
    """Work that shares devices by weight: fine-tunes, warm-ups, evaluations. Each copy is a workload of its own."""

    name: WorkloadName
    kind: WorkloadKind = "finetune"
    priority: WorkloadPriority | None = Field(default=None, description="absent: by kind")
    copies: int = Field(default=1, ge=1, le=100_000)
    tier: Tiers = Field(default=("gpu",), min_length=1)
    min_milli: int = Field(default=100, ge=1, le=1_000)
    desired_milli: int | None = Field(default=None, ge=1, le=1_000)
    memory_bytes: int = Field(default=0, ge=0, le=1 << 45)
    unit_ms: float = Field(default=5.0, gt=0, le=10_000, description="of a whole device, for one unit")
    units: int | None = Field(default=None, ge=1, description="until it is done; absent: without end")
    start_s: float = Field(default=5.0, gt=0, le=86_400, description="from a grant until it works; a resumption too")
    checkpoint_s: float = Field(default=30.0, gt=0, le=86_400, description="between two checkpoints")
    arrive_s: float = Field(default=0.0, ge=0, description="when it is submitted, seconds after the start")
    team: str = Field(default="", max_length=100)

    @model_validator(mode="after")
    def _not_online(self) -> Self:
        if self.kind == "inference" or self.priority == "guaranteed":
            raise ValueError("kind: guaranteed work is a service; state it under services")
        if self.desired_milli is not None and self.desired_milli < self.min_milli:
            raise ValueError(f"desired_milli: {self.desired_milli} is below min_milli {self.min_milli}")
        return self


class OutageSettings(Branch):
    """One failure that is planned."""

    at_s: float = Field(ge=0, description="seconds after the start")
    level: Level
    name: str = Field(min_length=1, description="of the device, node, rack or zone that is lost")
    for_s: Positive


class HazardSettings(Branch):
    """Failures at random, exponentially distributed, of every place of one level."""

    mtbf_hours: Positive = Field(description="mean time between two failures of one such place")
    repair_s: Positive = Field(description="mean time until it is repaired")


class FailureSettings(Branch):
    planned: tuple[OutageSettings, ...] = ()
    random: dict[Level, HazardSettings] = Field(default_factory=dict)
    detect_s: float = Field(default=0.05, gt=0, le=600, description="from a failure until everybody knows of it")


class Scenario(Branch):
    """Everything that is simulated. The same scenario and seed give the same result."""

    seed: int = Field(default=0, ge=0, le=2**31)
    duration_s: float = Field(default=DAY_S, gt=0, le=400 * DAY_S)
    begins: AwareDatetime | None = Field(
        default=None, description="with its zone; absent: where the first trace begins"
    )
    interval_s: float = Field(default=10.0, gt=0, le=3_600, description="between two ticks of the planner")
    mode: Mode = Field(default="auto", description="requests: one by one; intervals: by rates; auto: by their number")
    kinds: dict[Tier, KindSettings] = Field(min_length=1)
    fleet: tuple[Shelf, ...] = Field(min_length=1)
    services: tuple[ServiceSettings, ...] = Field(min_length=1)
    works: tuple[WorkSettings, ...] = ()
    failures: FailureSettings = FailureSettings()
    pool: PoolSettings = PoolSettings()

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for fault in self._faults():
            raise ValueError(fault)
        return self

    def _faults(self) -> Iterator[str]:
        for at, shelf in enumerate(self.fleet):
            if shelf.kind not in self.kinds:
                yield f"fleet.{at}.kind: {shelf.kind!r} is not described under kinds ({', '.join(sorted(self.kinds))})"
        if device_count(self.fleet) > MOST_DEVICES:
            yield f"fleet: {device_count(self.fleet)} devices are more than {MOST_DEVICES}"
        yield from _twice("fleet", "name", [shelf.prefix for shelf in self.fleet])
        yield from _twice("services and works", "name", [each.name for each in (*self.services, *self.works)])
        here = {shelf.kind for shelf in self.fleet}
        for field, users in (("services", self.services), ("works", self.works)):
            for at, user in enumerate(users):
                if not here & set(user.tier):
                    yield f"{field}.{at}.tier: the fleet has no {' or '.join(user.tier)}, but {', '.join(sorted(here))}"
        if self.interval_s > FORECAST_STEPS_S[-1] and any(service.autoscale for service in self.services):
            yield f"interval_s: {self.interval_s:g} is too long to scale by; at most {FORECAST_STEPS_S[-1]:g}"
        yield from self._lost_nowhere()

    def _lost_nowhere(self) -> Iterator[str]:
        if not self.failures.planned:
            return
        names = site_names(self.fleet)
        for at, outage in enumerate(self.failures.planned):
            if outage.name not in names[outage.level]:
                some = ", ".join(sorted(names[outage.level])[:5])
                yield f"failures.planned.{at}.name: no {outage.level} {outage.name!r}; there are {some}"
            elif outage.at_s >= self.duration_s:
                yield f"failures.planned.{at}.at_s: {outage.at_s:g} is after the end ({self.duration_s:g})"


def _twice(where: str, field: str, names: list[str]) -> Iterator[str]:
    again = [name for name, count in Counter(names).items() if count > 1]
    if again:
        yield f"{where}: {field} {again[0]!r} is stated more than once"
