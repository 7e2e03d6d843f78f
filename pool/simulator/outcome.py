"""What came out of a run: figures of every service and work, and of the pool as a whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pool.simulator.latencies import quantile_ms
from pool.simulator.scenario import Scenario
from pool.simulator.tallies import Tally, Use
from pool.simulator.world import World

HOUR_S = 3_600.0


@dataclass(frozen=True)
class ServiceOutcome:
    """Of one service.

    Attributes:
        violations: late, shed and lost requests.
        availability: share of the requests that were answered, late or not, and with more than popular items.
        p50_ms, p99_ms: of the answers; None where there was none.
        replicas: that served, on average. actions: changes of their number that an autoscaler asked for.
        slice_hours: that were leased, in hours of a whole device. price: of those.
    """

    asked: float
    violations: float
    late: float
    shed: float
    lost: float
    retried: float
    availability: float
    p50_ms: float | None
    p99_ms: float | None
    replicas: float
    actions: int
    slice_hours: float
    used_hours: float
    price: float


@dataclass(frozen=True)
class WorkOutcome:
    """Of one work, all its copies together.

    Attributes:
        steps: units that count. lost_steps: that had to be done again, as a device was lost.
        succeeded: copies that are done.
    """

    kind: str
    copies: int
    steps: float
    lost_steps: float
    succeeded: int
    slice_hours: float
    used_hours: float
    price: float


@dataclass(frozen=True)
class Outcome:
    """Of a run. It is the same for the same scenario and seed; how long the run took is told elsewhere.

    Attributes:
        mode: how requests were simulated.
        utilisation: share of the time of devices that were there which was used; serving and working are its parts.
        device_hours: that were there. price: of those, whoever leased them.
        decisions: of the planner, by kind, those of the beginning left out.
    """

    mode: str
    emulated: bool
    seconds: float
    devices: int
    outages: int
    utilisation: float
    serving: float
    working: float
    device_hours: float
    price: float
    preemptions: int
    migrations: int
    decisions: dict[str, int]
    services: dict[str, ServiceOutcome]
    works: dict[str, WorkOutcome]

    @property
    def asked(self) -> float:
        return sum(each.asked for each in self.services.values())

    @property
    def violations(self) -> float:
        return sum(each.violations for each in self.services.values())

    @property
    def availability(self) -> float:
        """Of all requests of all services."""
        missed = sum(each.shed + each.lost for each in self.services.values())
        return 1 - missed / self.asked if self.asked else 1.0

    @property
    def steps(self) -> float:
        return sum(each.steps for each in self.works.values())

    def as_dict(self) -> dict[str, Any]:
        totals = {"asked": self.asked, "violations": self.violations, "availability": self.availability}
        return {**asdict(self), **totals, "steps": self.steps}


def outcome_of(
    scenario: Scenario,
    world: World,
    tallies: Mapping[str, Tally],
    use: Use,
    actions: Counter[str],
    replica_s: Mapping[str, float],
    outages: int,
    mode: str,
) -> Outcome:
    """The figures of what was counted."""
    there_s = use.there_s or 1.0
    profiles = [profile for service in scenario.services for profile in service.profiles.values()]
    return Outcome(
        mode=mode,
        emulated=any(each.emulated for each in (*profiles, *scenario.kinds.values())),
        seconds=scenario.duration_s,
        devices=len(world.devices),
        outages=outages,
        utilisation=(use.serving_s + use.working_s) / there_s,
        serving=use.serving_s / there_s,
        working=use.working_s / there_s,
        device_hours=use.there_s / HOUR_S,
        price=use.price,
        preemptions=world.made["Preempt"],
        migrations=world.made["Migrate"],
        decisions=dict(sorted(world.made.items())),
        services={
            name: _service(tally, name, use, actions[name], replica_s[name] / scenario.duration_s)
            for name, tally in tallies.items()
        },
        works=_works(world, use),
    )


def _service(tally: Tally, name: str, use: Use, actions: int, replicas: float) -> ServiceOutcome:
    has_answers = tally.answered > 0
    return ServiceOutcome(
        asked=tally.asked,
        violations=tally.violations,
        late=tally.late,
        shed=tally.shed,
        lost=tally.lost,
        retried=tally.retried,
        availability=1 - (tally.shed + tally.lost) / tally.asked if tally.asked else 1.0,
        p50_ms=quantile_ms(tally.counts, 0.5) if has_answers else None,
        p99_ms=quantile_ms(tally.counts, 0.99) if has_answers else None,
        replicas=replicas,
        actions=actions,
        slice_hours=use.leased_s.get(name, 0.0) / HOUR_S,
        used_hours=use.used_s.get(name, 0.0) / HOUR_S,
        price=use.leased_price.get(name, 0.0),
    )


def _works(world: World, use: Use) -> dict[str, WorkOutcome]:
    found: dict[str, WorkOutcome] = {}
    for work in world.scenario.works:
        name = work.name
        records = [record for record in world.records.values() if record.owner is work and record.work is not None]
        works = [record.work for record in records if record.work is not None]
        found[name] = WorkOutcome(
            kind=work.kind,
            copies=len(works),
            steps=sum(each.done for each in works),
            lost_steps=sum(each.lost for each in works),
            succeeded=sum(each.is_done for each in works),
            slice_hours=use.leased_s.get(name, 0.0) / HOUR_S,
            used_hours=use.used_s.get(name, 0.0) / HOUR_S,
            price=use.leased_price.get(name, 0.0),
        )
    return found
