"""Requests one by one: each arrives, waits, is answered in a batch or lost with a device and sent again."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import simpy

from pool.device import CAPACITY_MILLI, DeviceKind
from pool.policy.observation import SliceMetrics
from pool.simulator.batch_draws import BatchDraws
from pool.simulator.demand import Demand
from pool.simulator.door import Door, MakeDoor, ShortLine
from pool.simulator.gate import SimulatedGate
from pool.simulator.latencies import counted
from pool.simulator.scenario import ServiceSettings
from pool.simulator.tallies import Tally, Use, Window
from pool.simulator.world import Copy, Work, World

Steps = Generator[simpy.Event, Any, None]
CHUNK_S = 10.0
"""Arrivals are drawn for so long ahead."""


@dataclass(eq=False)
class Replica:
    """A copy that answers. Rows are the times at which they arrived.

    Attributes:
        waiting: rows in its line. inside: rows of the batch that runs.
        is_open: takes new rows; one that was told to leave only works off its line.
        seen: latencies since the last reading, in ms.
    """

    copy: Copy
    service: ServiceSettings
    door: Door
    device: str
    wake: simpy.Event
    waiting: deque[float] = field(default_factory=deque)
    inside: list[float] = field(default_factory=list)
    is_open: bool = True
    process: simpy.Process | None = None
    seen: list[float] = field(default_factory=list)

    @property
    def under_way(self) -> int:
        return len(self.waiting) + len(self.inside)


class RequestTraffic:
    """All services and all work, request by request and step by step.

    Attributes:
        rows: most rows of a batch, by service; a door may allow fewer.
    """

    def __init__(
        self,
        env: simpy.Environment,
        world: World,
        demands: Mapping[str, Demand],
        seed: int,
        make_door: MakeDoor = ShortLine,
    ):
        self._env, self._world, self._make_door = env, world, make_door
        self.services = {each.name: each for each in world.scenario.services}
        self.tallies = {name: Tally() for name in self.services}
        self.windows = {name: Window() for name in self.services}
        self.rows = {name: each.max_batch_rows for name, each in self.services.items()}
        self.use = Use()
        kinds = world.scenario.kinds
        self._gates = {name: SimulatedGate(env, kinds[each.kind].lanes) for name, each in world.devices.items()}
        self._replicas: dict[str, Replica] = {}
        self._open: dict[str, list[Replica]] = {name: [] for name in self.services}
        self._turn = dict.fromkeys(self.services, 0)
        self._rng = {name: np.random.default_rng([seed, at]) for at, name in enumerate(self.services)}
        self._draws = {
            (name, kind): BatchDraws(profile, each.max_batch_rows)
            for name, each in self.services.items()
            for kind, profile in each.profiles.items()
        }
        self._fresh: dict[str, list[float]] = {name: [] for name in self.services}
        self._metered: dict[str, int] = {}
        self._at_s = 0.0
        for at, (name, demand) in enumerate(demands.items()):
            env.process(self._arrive(self.services[name], demand, np.random.default_rng([seed, at, 1])))

    def advance(self, now_s: float) -> None:
        """Account for the use of devices up to now."""
        span_s, self._at_s = now_s - self._at_s, now_s
        self._count()
        if span_s <= 0:
            return
        world, use = self._world, self.use
        self._metered = {}
        for name, gate in self._gates.items():
            device = world.devices[name]
            lanes = world.scenario.kinds[device.kind].lanes
            if name not in world.down:
                use.there_s += span_s
                use.price += device.price_per_hour * span_s / 3_600
            for lease, used_s in gate.readings().items():
                self._meter(lease, used_s, lanes, span_s)
        for copy in world.copies.values():
            seconds = copy.view.milli / CAPACITY_MILLI * span_s
            price = world.devices[copy.view.device].price_per_hour * seconds / 3_600
            use.lease(world.records[copy.view.workload].owner.name, seconds, price)
        for name, replicas in self._open.items():
            self.windows[name].up_s += len(replicas) * span_s

    def refresh(self, now_s: float) -> None:
        """The world has changed: replicas come and go, and others take turns."""
        world = self._world
        there = {copy.view.id: copy for name in self.services for copy in world.serving(name, now_s)}
        for lease, replica in list(self._replicas.items()):
            copy = there.get(lease)
            if copy is None or copy.view.device != replica.device:
                self._close(replica)
        for lease, copy in there.items():
            if lease not in self._replicas:
                self._begin(copy)
        members: dict[str, dict[str, tuple[Copy, Work]]] = {name: {} for name in self._gates}
        for lease, copy in world.copies.items():
            work = world.records[copy.view.workload].work
            if work is not None and not work.paused and copy.is_ready(now_s) and copy.view.device not in world.down:
                members[copy.view.device][lease] = copy, work
        for name, own in members.items():
            self._gates[name].share(own)

    def interrupt(self, devices: Iterable[str], now_s: float) -> None:
        """Devices are lost just now, and what is under way on them; it is sent again once that is noticed."""
        gone = set(devices)
        for name in gone:
            self._gates[name].fail()
        for lease, replica in list(self._replicas.items()):
            if replica.device in gone:
                rows = [*replica.inside, *replica.waiting]
                del self._replicas[lease]
                self._open[replica.service.name].remove(replica)
                replica.is_open = False
                if replica.process is not None and replica.process.is_alive:
                    replica.process.interrupt()
                self._env.process(self._send_again(replica.service, rows))

    def metrics(self, now_s: float) -> dict[str, SliceMetrics]:
        """What gates and replicas would tell the planner, by lease."""
        found = {}
        for lease, copy in self._world.copies.items():
            if not copy.is_ready(now_s):
                continue
            replica, p99_ms = self._replicas.get(lease), None
            if replica is not None:
                p99_ms = float(np.quantile(replica.seen, 0.99)) if replica.seen else None
                replica.seen.clear()
            work = self._world.records[copy.view.workload].work
            wants = work is None or not (work.paused or work.is_done)
            found[lease] = SliceMetrics(copy.weight_milli, self._metered.get(lease, 0), wants, p99_ms)
        return found

    def window(self, service: str) -> Window:
        """What happened since this was asked last."""
        window, self.windows[service] = self.windows[service], Window()
        window.queued = float(sum(len(replica.waiting) for replica in self._open[service]))
        return window

    def _meter(self, lease: str, used_s: float, lanes: int, span_s: float) -> None:
        """Batches are metered by the lane, steps by the device."""
        copy = self._world.copies.get(lease)
        if copy is None:
            return
        owner = self._world.records[copy.view.workload]
        if owner.work is None:
            self.windows[owner.owner.name].busy_s += used_s
            used_s /= lanes
            self.use.serving_s += used_s
        else:
            self.use.working_s += used_s
        self.use.took(owner.owner.name, used_s)
        self._metered[lease] = round(CAPACITY_MILLI * used_s / span_s)

    def _begin(self, copy: Copy) -> None:
        owner = self._world.records[copy.view.workload].owner
        assert isinstance(owner, ServiceSettings)
        replica = Replica(copy, owner, self._make_door(owner), copy.view.device, self._env.event())
        replica.process = self._env.process(self._answer(replica))
        self._replicas[copy.view.id] = replica
        self._open[owner.name].append(replica)

    def _close(self, replica: Replica) -> None:
        replica.is_open = False
        del self._replicas[replica.copy.view.id]
        self._open[replica.service.name].remove(replica)
        if not replica.wake.triggered:
            replica.wake.succeed()

    def _arrive(self, service: ServiceSettings, demand: Demand, rng: np.random.Generator) -> Steps:
        end_s, from_s = self._world.scenario.duration_s, 0.0
        while from_s < end_s:
            until_s = min(end_s, from_s + CHUNK_S)
            for at_s in demand.times_s(from_s, until_s, rng).tolist():
                if at_s > self._env.now:
                    yield self._env.timeout(at_s - self._env.now)
                self.tallies[service.name].asked += 1
                self.windows[service.name].arrived += 1
                self._send(service, self._env.now)
            if until_s > self._env.now:
                yield self._env.timeout(until_s - self._env.now)
            from_s = until_s

    def _send(self, service: ServiceSettings, arrived_s: float) -> None:
        """To the replica with the fewest requests under way, as HAProxy's ``leastconn`` does; ties go round."""
        replicas, tally = self._open[service.name], self.tallies[service.name]
        if not replicas:
            tally.lost += 1
            self.windows[service.name].violations += 1
            return
        turn = self._turn[service.name] = (self._turn[service.name] + 1) % len(replicas)
        chosen = min((*replicas[turn:], *replicas[:turn]), key=lambda each: each.under_way)
        if not chosen.door.admits(arrived_s, self._env.now):
            tally.shed += 1
            self.windows[service.name].violations += 1
            return
        chosen.waiting.append(arrived_s)
        chosen.door.queued(self._env.now)
        if not chosen.wake.triggered:
            chosen.wake.succeed()

    def _send_again(self, service: ServiceSettings, rows: list[float]) -> Steps:
        yield self._env.timeout(self._world.scenario.failures.detect_s)
        self.tallies[service.name].retried += len(rows)
        for arrived_s in rows:
            self._send(service, arrived_s)

    def _answer(self, replica: Replica) -> Steps:
        service, env = replica.service, self._env
        kind: DeviceKind = self._world.devices[replica.device].kind
        draws, rng, gate = self._draws[service.name, kind], self._rng[service.name], self._gates[replica.device]
        try:
            while replica.is_open or replica.waiting:
                if not replica.waiting:
                    replica.wake = env.event()
                    yield replica.wake
                    continue
                most = max(1, min(self.rows[service.name], replica.door.most_rows(env.now)))
                batch = [replica.waiting.popleft() for _ in range(min(most, len(replica.waiting)))]
                replica.inside = batch
                begun = replica.door.started(len(batch), (env.now - batch[0]) * 1e3, env.now)
                yield gate.compute(replica.copy.view.id, draws.draw_s(len(batch), rng.standard_normal()))
                replica.door.done(begun, env.now)
                self._answered(replica, batch)
                replica.inside = []
        except simpy.Interrupt:
            return

    def _answered(self, replica: Replica, batch: list[float]) -> None:
        service, now_s = replica.service, self._env.now
        latencies_ms = [(now_s - arrived_s) * 1e3 + service.overhead_ms for arrived_s in batch]
        late = sum(each > service.slo_ms for each in latencies_ms)
        self.tallies[service.name].late += late
        self.windows[service.name].violations += late
        self._fresh[service.name] += latencies_ms
        replica.seen += latencies_ms

    def _count(self) -> None:
        """Sort the latencies since the last time into their bins, all in one go."""
        for name, latencies_ms in self._fresh.items():
            if latencies_ms:
                counts = counted(np.array(latencies_ms))
                self.tallies[name].counts += counts
                self.windows[name].counts += counts
                latencies_ms.clear()
