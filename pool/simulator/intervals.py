"""Requests by interval: rates instead of single ones, so that a day of ten thousand million takes minutes.

Within an interval nothing comes or goes. While a service keeps up, its latencies are those of its `LoadCurve` at
this rate; where it does not, requests wait in a line that grows, and those who would wait too long are shed. What
guaranteed work leaves of a device goes to the others by weight: what deficit round robin (`pool.gate.turns`) comes
to over many turns, while all of them want the device.

Two approximations: a service that was behind is settled as soon as its line is gone, and a replica beside others on
its device computes as slowly as the device's free lanes say on average.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import NDArray

from pool.device import CAPACITY_MILLI
from pool.policy.observation import SliceMetrics
from pool.simulator.demand import Demand
from pool.simulator.latencies import above, counted, quantile_ms, stretched
from pool.simulator.layout import Group, Layout, arrange
from pool.simulator.load_curves import PARTS, LoadCurve, group_of, load_curve
from pool.simulator.scenario import ServiceSettings
from pool.simulator.tallies import Tally, Use, Window
from pool.simulator.world import World

LEAST_SPEED = 0.05
"""Of a replica whose neighbours use the whole device; so it never stands still for ever."""
KEEPS_UP = PARTS[-1]
LINE_PARTS = (np.arange(8) + 0.5) / 8
"""Where in a line, from its beginning to its end in the interval, waits are read."""


class IntervalTraffic:
    """All services and all work between two moments.

    Attributes:
        rows: most rows of a batch, by service.
    """

    def __init__(self, world: World, demands: Mapping[str, Demand], seed: int):
        self._world, self._demands = world, demands
        self.services = {each.name: each for each in world.scenario.services}
        self._rng = {name: np.random.default_rng([seed, at]) for at, name in enumerate(self.services)}
        self._place = {name: at for at, name in enumerate(world.devices)}
        self.tallies = {name: Tally() for name in self.services}
        self.windows = {name: Window() for name in self.services}
        self.rows = {name: each.max_batch_rows for name, each in self.services.items()}
        self.use = Use()
        self._line = dict.fromkeys(self.services, 0.0)
        self._loads = np.zeros(len(self._place))
        self._at_s = 0.0
        self._version = -1
        self._layout: Layout | None = None

    def advance(self, now_s: float) -> None:
        """Account for everything up to now, with what stood since the last time."""
        from_s, self._at_s = self._at_s, now_s
        if now_s <= from_s:
            return
        layout = self._arranged(from_s)
        loads = np.zeros(len(self._place))
        for name, service in self.services.items():
            arrived = float(self._demands[name].count(from_s, now_s, self._rng[name]))
            self._serve(service, layout.groups[name], arrived, now_s - from_s, layout)
            for group in layout.groups[name]:
                np.add.at(loads, group.devices, group.used)
        self._loads = loads
        self._work(layout, now_s - from_s, now_s)
        self._meter(layout, now_s - from_s)

    def refresh(self, now_s: float) -> None:
        """The world has changed; it is looked at when it is needed next."""

    def interrupt(self, devices: Iterable[str], now_s: float) -> None:
        """Devices are lost just now: what is sent there until somebody knows is late, and answered elsewhere."""
        gone, detect_s = set(devices), self._world.scenario.failures.detect_s
        for name, service in self.services.items():
            copies = [copy for copy in self._world.of.get(name, {}).values() if copy.is_ready(now_s)]
            lost = sum(copy.view.device in gone for copy in copies)
            if not lost:
                continue
            sent = self._demands[name].rate_per_s(now_s) * detect_s * lost / len(copies)
            tally = self.tallies[name]
            tally.retried += sent
            if detect_s * 1e3 > service.slo_ms:
                tally.late += sent
                self.windows[name].violations += sent

    def metrics(self, now_s: float) -> dict[str, SliceMetrics]:
        """What gates and replicas would tell the planner, by lease."""
        layout, found = self._arranged(now_s), {}
        for groups in layout.groups.values():
            for group in groups:
                metered = CAPACITY_MILLI * group.used / np.maximum(layout.lanes[group.devices], 1)
                rows = zip(group.copies, np.rint(metered).astype(int).tolist(), group.p99_ms.tolist(), strict=True)
                for copy, milli, p99_ms in rows:
                    known = p99_ms if p99_ms == p99_ms else None
                    found[copy.view.id] = SliceMetrics(copy.weight_milli, milli, True, known)
        sharers = layout.sharers
        used = np.rint(CAPACITY_MILLI * sharers.used).astype(int).tolist()
        for copy, milli in zip(sharers.copies, used, strict=True):
            found[copy.view.id] = SliceMetrics(copy.weight_milli, milli)
        return found

    def window(self, service: str) -> Window:
        """What happened since this was asked last."""
        window, self.windows[service] = self.windows[service], Window()
        window.queued = self._line[service]
        return window

    def _arranged(self, now_s: float) -> Layout:
        if self._layout is None or self._version != self._world.version:
            before, self._version = self._layout, self._world.version
            self._layout = arrange(self._world, self._place, now_s)
            if before is not None:
                _keep_used(before, self._layout)
        return self._layout

    def _serve(
        self, service: ServiceSettings, groups: list[Group], arrived: float, span_s: float, layout: Layout
    ) -> None:
        tally, window = self.tallies[service.name], self.windows[service.name]
        tally.asked += arrived
        window.arrived += arrived
        replicas = sum(len(group.copies) for group in groups)
        window.up_s += replicas * span_s
        line = self._line[service.name]
        if not replicas:
            tally.lost += arrived + line
            window.violations += arrived + line
            self._line[service.name] = 0.0
            return
        curves = [self._curve(service, group, replicas) for group in groups]
        speeds = [self._speeds(group, layout) for group in groups]
        can_per_s = [curve.most_per_s * float(speed.sum()) for curve, speed in zip(curves, speeds, strict=True)]
        total_per_s, settled = sum(can_per_s), arrived
        if line or arrived > KEEPS_UP * total_per_s * span_s:
            settled = self._queue(service, arrived, span_s, total_per_s)
        for group, curve, speed, per_s in zip(groups, curves, speeds, can_per_s, strict=True):
            if settled or not arrived:
                part = arrived / span_s / total_per_s
                self._settle(service, group, curve, speed, settled * per_s / total_per_s, part)
            else:
                group.used = speed
                group.p99_ms = np.full(len(speed), quantile_ms(window.counts, 0.99))
            window.busy_s += span_s * float((group.used / speed).sum())

    def _curve(self, service: ServiceSettings, group: Group, replicas: int) -> LoadCurve:
        profile = service.profiles[group.kind]
        return load_curve(profile, self.rows[service.name], group_of(replicas), group.hold_s)

    def _speeds(self, group: Group, layout: Layout) -> NDArray[np.float64]:
        """Of a whole lane, that each replica had lately beside the others on its device, [N]."""
        others = self._loads[group.devices] - group.used
        return np.clip(layout.lanes[group.devices] - others, LEAST_SPEED, 1.0)

    def _settle(
        self,
        service: ServiceSettings,
        group: Group,
        curve: LoadCurve,
        speed: NDArray[np.float64],
        requests: float,
        part: float,
    ) -> None:
        """Requests to a group of replicas that keep up with them.

        Args:
            part: rate of all requests, of the most that all replicas can do.
        """
        shares, busy = curve.at(part * curve.most_per_s)
        group.used = busy * speed
        base_ms = quantile_ms(shares, 0.99) if requests else np.nan
        group.p99_ms = base_ms / speed + service.overhead_ms
        self._count(service, stretched(shares * requests, 1 / float(speed.mean()), service.overhead_ms))

    def _queue(self, service: ServiceSettings, arrived: float, span_s: float, can_per_s: float) -> float:
        """Requests to a service that is behind; returns how many came after its line was gone."""
        before, longest = self._line[service.name], can_per_s * service.max_wait_ms / 1e3
        grown = before + arrived - can_per_s * span_s
        if grown < 0:  # it catches up within the interval
            until_s = before / (can_per_s - arrived / span_s)
            self._wait(service, before, 0.0, can_per_s * until_s, can_per_s)
            self._line[service.name] = 0.0
            return arrived * (1 - until_s / span_s)
        after, shed = min(grown, longest), max(0.0, grown - longest)
        self._wait(service, min(before, longest), after, can_per_s * span_s, can_per_s)
        self._line[service.name] = after
        self.tallies[service.name].shed += shed
        self.windows[service.name].violations += shed
        return 0.0

    def _wait(self, service: ServiceSettings, before: float, after: float, requests: float, can_per_s: float) -> None:
        """Answers to requests that stood in a line of one length at first and of another at last."""
        waits_ms = 1e3 * (before + (after - before) * LINE_PARTS) / can_per_s
        rows = self.rows[service.name]
        batch_ms = min(profile.latency(rows).p50_ms for profile in service.profiles.values())
        counts = counted(waits_ms + batch_ms + service.overhead_ms) * (requests / len(waits_ms))
        self._count(service, counts)

    def _count(self, service: ServiceSettings, counts: NDArray[np.float64]) -> None:
        tally, window = self.tallies[service.name], self.windows[service.name]
        late = above(counts, service.slo_ms)
        tally.counts += counts
        tally.late += late
        window.counts += counts
        window.violations += late

    def _work(self, layout: Layout, span_s: float, now_s: float) -> None:
        """Whatever shares devices by weight does as many units as guaranteed work has left time for."""
        sharers, lanes = layout.sharers, layout.lanes
        left = np.clip(lanes - self._loads, 0.0, None) / np.maximum(lanes, 1.0)
        weights = np.array(
            [copy.weight_milli * work.factor for copy, work in zip(sharers.copies, sharers.works, strict=True)]
        )
        sums = np.bincount(sharers.devices, weights=weights, minlength=len(lanes))
        heads = np.bincount(sharers.devices, minlength=len(lanes))
        nobody = sums[sharers.devices] == 0  # a weight of 0 asks for what nobody with a weight uses
        part = np.where(
            nobody, 1 / np.maximum(heads, 1)[sharers.devices], weights / np.maximum(sums, 1)[sharers.devices]
        )
        sharers.used = left[sharers.devices] * part
        units = sharers.used * span_s / sharers.unit_s
        for work, done in zip(sharers.works, units.tolist(), strict=True):
            work.advance(done, now_s)

    def _meter(self, layout: Layout, span_s: float) -> None:
        use, there = self.use, layout.lanes > 0
        use.there_s += float(there.sum()) * span_s
        use.price += layout.price_per_hour * span_s / 3_600
        serving = self._loads[there] / layout.lanes[there]
        use.serving_s += float(np.minimum(1.0, serving).sum()) * span_s
        use.working_s += float(layout.sharers.used.sum()) * span_s
        for owner, milli in layout.leased_milli.items():
            use.lease(owner, milli / CAPACITY_MILLI * span_s, layout.leased_price[owner] * span_s / 3_600)
        for work, used in zip(layout.sharers.works, layout.sharers.used.tolist(), strict=True):
            use.took(work.settings.name, used * span_s)
        for name, groups in layout.groups.items():
            for group in groups:
                use.took(name, float((group.used / np.maximum(layout.lanes[group.devices], 1.0)).sum()) * span_s)


def _keep_used(before: Layout, after: Layout) -> None:
    """What replicas used lately goes on with them into a new layout."""
    used = {
        copy.view.id: each
        for groups in before.groups.values()
        for group in groups
        for copy, each in zip(group.copies, group.used.tolist(), strict=True)
    }
    for groups in after.groups.values():
        for group in groups:
            group.used = np.array([used.get(copy.view.id, 0.0) for copy in group.copies])
