"""One run: simpy's clock, the live planner at every interval, and whatever fails and comes back in between."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import simpy

from pool.policy.autoscale.signals import Autoscaler, Signals
from pool.policy.learned.split import KEPT, Allocator, Split
from pool.policy.observation import SliceMetrics
from pool.simulator.door import MakeDoor, ShortLine
from pool.simulator.intervals import IntervalTraffic
from pool.simulator.outages import Outage, outages
from pool.simulator.outcome import Outcome, outcome_of
from pool.simulator.reading import Loaded
from pool.simulator.requests import RequestTraffic
from pool.simulator.scaling import autoscalers_of
from pool.simulator.seen import SeenAt, split_signals
from pool.simulator.tallies import Tally, Use, Window
from pool.simulator.world import World

Steps = Generator[simpy.Event, Any, None]
MOST_REQUESTS = 500_000
"""Above so many, `auto` does not simulate them one by one; that many take about a minute."""
MOST_PLACED_ONE_BY_ONE = 64
"""Devices up to which `auto` may simulate requests one by one."""
SETTLING = 8
"""Ticks before the beginning, until nothing is left to be decided."""


class Traffic(Protocol):
    """Requests and work between two moments; see `intervals` and `requests`."""

    rows: dict[str, int]
    tallies: dict[str, Tally]
    use: Use

    def advance(self, now_s: float) -> None: ...

    def refresh(self, now_s: float) -> None: ...

    def interrupt(self, devices: Iterable[str], now_s: float) -> None: ...

    def metrics(self, now_s: float) -> dict[str, SliceMetrics]: ...

    def window(self, service: str) -> Window: ...


@dataclass
class Trail:
    """What one service had at the end of each interval."""

    at_s: list[float] = field(default_factory=list)
    arrived: list[float] = field(default_factory=list)
    running: list[int] = field(default_factory=list)
    starting: list[int] = field(default_factory=list)
    violations: list[float] = field(default_factory=list)


class Simulation:
    """One scenario, run once.

    Args:
        autoscalers: by service, in the place of the live one; without either the number of replicas stays.
        allocator: adjusts the planner's split between serving, warm-up and fine-tuning.
        make_door: the rule by which replicas admit requests, where those are simulated one by one.

    Attributes:
        tick_s: processor time of each of the planner's ticks in seconds; placing_s: of those before the beginning.
        trails: by service.
    """

    def __init__(
        self,
        loaded: Loaded,
        autoscalers: Mapping[str, Autoscaler] | None = None,
        allocator: Allocator | None = None,
        make_door: MakeDoor = ShortLine,
    ):
        self._loaded, self._scenario = loaded, loaded.scenario
        self._autoscalers = {**autoscalers_of(loaded.scenario), **(autoscalers or {})}
        self._allocator = allocator
        self._env = simpy.Environment()
        self.world = World(self._scenario)
        self.tick_s: list[float] = []
        self.placing_s: list[float] = []
        self.trails = {service.name: Trail() for service in self._scenario.services}
        self._actions: Counter[str] = Counter()
        self._failed: Counter[str] = Counter()
        self._replica_s = dict.fromkeys(self.trails, 0.0)
        self._split, self._looked_s = KEPT, 0.0
        self._awaited: set[float] = set()
        self._outages = outages(self._scenario, self.world.devices.values(), self._scenario.seed)
        self.mode = mode_of(loaded)
        seed, demands = self._scenario.seed, loaded.demands
        if self.mode == "requests":
            self.traffic: Traffic = RequestTraffic(self._env, self.world, demands, seed, make_door)
        else:
            self.traffic = IntervalTraffic(self.world, demands, seed)

    def run(self) -> Outcome:
        """To its end."""
        self._begin()
        env = self._env
        env.process(self._control())
        for outage in self._outages:
            env.process(self._fail(outage))
        for owner in self._scenario.works:
            if owner.arrive_s:
                env.process(self._submit_later(owner.arrive_s, owner))
        env.run(until=self._scenario.duration_s)
        self._end()
        return outcome_of(
            self._scenario,
            self.world,
            self.traffic.tallies,
            self.traffic.use,
            self._actions,
            self._replica_s,
            len(self._outages),
            self.mode,
        )

    def _begin(self) -> None:
        """Everything that is there from the beginning is placed and warm."""
        for service in self._scenario.services:
            self.world.submit(service, 0.0)
        for work in self._scenario.works:
            if not work.arrive_s:
                self.world.submit(work, 0.0)
        for _ in range(SETTLING):
            decisions = self._tick()
            self.world.apply(decisions, 0.0)
            self.world.warm(0.0)
            if not decisions:
                break
        self.world.made.clear()
        self.placing_s, self.tick_s = self.tick_s, []
        self.traffic.refresh(0.0)

    def _end(self) -> None:
        """What has happened since the last interval counts too."""
        end_s = self._scenario.duration_s
        self.traffic.advance(end_s)
        for name in self.trails:
            self._replica_s[name] += len(self.world.serving(name, end_s)) * (end_s - self._looked_s)

    def _control(self) -> Steps:
        interval_s = self._scenario.interval_s
        while True:
            yield self._env.timeout(interval_s)
            self.traffic.advance(self._env.now)
            self.world.settle_work()
            self._look(interval_s)
            self._decide()

    def _look(self, interval_s: float) -> None:
        """Read what happened in the interval; autoscalers and the allocator say what they want."""
        seen: dict[str, SeenAt] = {}
        now_s = self._looked_s = self._env.now
        for service in self._scenario.services:
            name = service.name
            window, record = self.traffic.window(name), self.world.records[name]
            running = len(self.world.serving(name, now_s))
            starting = max(0, record.view.state.spec.replicas - running)
            self._replica_s[name] += running * interval_s
            trail = self.trails[name]
            trail.at_s.append(now_s)
            trail.arrived.append(window.arrived)
            trail.running.append(running)
            trail.starting.append(starting)
            trail.violations.append(window.violations)
            self._scale(name, window, running, starting, interval_s)
            seen[name] = SeenAt(service, window, running)
        if self._allocator is not None:
            self._use(
                self._allocator.decide(split_signals(self._loaded.begins_s + now_s, interval_s, seen, self.world))
            )

    def _scale(self, name: str, window: Window, running: int, starting: int, interval_s: float) -> None:
        autoscaler = self._autoscalers.get(name)
        if autoscaler is None:
            return
        signals = Signals(
            at_s=self._loaded.begins_s + self._env.now,
            interval_s=interval_s,
            arrived=window.arrived,
            queued=window.queued,
            busy=window.busy,
            running=running,
            starting=starting,
            violations=window.violations,
        )
        record, target = self.world.records[name], autoscaler.decide(signals)
        if target.replicas != record.view.state.spec.replicas:
            self._actions[name] += 1
            record.wants(max(1, target.replicas))

    def _use(self, split: Split) -> None:
        """Carry out what the allocator wants, beside the planner's shares."""
        if split == self._split:
            return
        self._split = split
        for service in self._scenario.services:
            self.traffic.rows[service.name] = split.rows_of(service.max_batch_rows)
        self._tell_works()

    def _tell_works(self) -> None:
        split = self._split
        for record in self.world.records.values():
            if record.work is not None:
                record.work.paused = split.pauses(record.view.state.spec.kind)
                record.work.factor = split.factor_of(record.view.state.spec.kind)
        self.world.version += 1

    def _decide(self) -> None:
        now_s = self._env.now
        self.world.apply(self._tick(), now_s)
        self.traffic.refresh(now_s)
        self._await_ready()

    def _tick(self) -> Any:
        metrics = self.traffic.metrics(self._env.now)
        began_s = time.process_time()  # the planner waits for nothing: on a core of its own that is the wall's time
        decisions = self.world.tick(metrics, self._env.now)
        self.tick_s.append(time.process_time() - began_s)
        return decisions

    def _await_ready(self) -> None:
        """Copies that start are there at their time, not only at the next tick."""
        ready_s = self.world.next_ready_s(self._env.now)
        if ready_s < math.inf and ready_s not in self._awaited:
            self._awaited.add(ready_s)
            self._env.process(self._get_ready(ready_s))

    def _get_ready(self, ready_s: float) -> Steps:
        yield self._env.timeout(ready_s - self._env.now)
        self._awaited.discard(ready_s)
        self.traffic.advance(self._env.now)
        self.world.settle(self._env.now)
        self.traffic.refresh(self._env.now)
        self._await_ready()

    def _fail(self, outage: Outage) -> Steps:
        env, world, detect_s = self._env, self.world, self._scenario.failures.detect_s
        yield env.timeout(outage.at_s)
        fresh = [name for name in outage.devices if not self._failed[name]]
        self._failed.update(outage.devices)
        self.traffic.advance(env.now)
        world.lose(fresh)
        self.traffic.interrupt(fresh, env.now)
        self.traffic.refresh(env.now)
        yield env.timeout(detect_s)
        self.traffic.advance(env.now)
        world.notice([name for name in fresh if self._failed[name]], is_dead=True)
        self._decide()
        yield env.timeout(max(0.0, outage.until_s - env.now))
        kinds = self._scenario.kinds
        start_s = max(kinds[world.devices[name].kind].start_s for name in outage.devices)
        yield env.timeout(start_s)
        self._failed.subtract(outage.devices)
        self.traffic.advance(env.now)
        world.notice([name for name in outage.devices if not self._failed[name]], is_dead=False)
        self._decide()

    def _submit_later(self, at_s: float, owner: Any) -> Steps:
        yield self._env.timeout(at_s)
        self.traffic.advance(self._env.now)
        self.world.submit(owner, self._env.now)
        self._tell_works()
        self._decide()


def mode_of(loaded: Loaded) -> str:
    """How requests are simulated: as the scenario says, or by their number."""
    scenario = loaded.scenario
    if scenario.mode != "auto":
        return scenario.mode
    requests = sum(demand.expected(0.0, scenario.duration_s) for demand in loaded.demands.values())
    devices = sum(shelf.count for shelf in scenario.fleet)
    return "requests" if requests <= MOST_REQUESTS and devices <= MOST_PLACED_ONE_BY_ONE else "intervals"
