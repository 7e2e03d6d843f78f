"""The controller: observe, let the planner decide, apply, write the journal; and what people tell it between.

It owns nothing that serving needs. It may be killed at any time: what runs goes on, and the one that starts next
takes over (`pool.runtime.takeover`); one that is no longer the newest notices at the first word it says to anyone,
and says nothing more.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from configs.errors import Conflict, NotFound, Unavailable
from configs.pool_settings import PoolSettings
from pool.policy import planner
from pool.policy.cost_summary import CostSummary
from pool.runtime import commands
from pool.runtime.applying import Applier, Places
from pool.runtime.claiming import claim_slice, give_back, roles
from pool.runtime.costs import CostKeeper
from pool.runtime.inventory import sites_of
from pool.runtime.journal import Journal
from pool.runtime.knowledge import Knowledge
from pool.runtime.messages import Claim, Claimed, NodeFound, Polled, RayNode
from pool.runtime.observing import observe
from pool.runtime.records import Record
from pool.runtime.reporting import report, workload_reports
from pool.runtime.settling import Settler
from pool.runtime.state import Fenced, PoolState
from pool.runtime.takeover import Ground, gate_orders, take_over
from pool.views import PoolReport, WorkloadReport
from pool.workload import WorkloadSpec

log = logging.getLogger("recpool.pool")
POLL_S = 0.05
"""How long a tick waits for answers; later ones are collected by the next."""
NODES_S = 1.0
"""Seconds between two looks at which nodes there are."""


@dataclass(frozen=True)
class Clocks:
    """Seconds: monotonic, and since 1970."""

    monotonic: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time


class PoolController:
    """All of the controller but Ray; methods may be called by several threads.

    Every method raises Unavailable before `start` has taken over, and Conflict once another controller has.

    Args:
        knowledge: of the costs of workloads; None: nothing is known.
        announce: told of each serving replica whether it stands by, at every tick and claim; it decides what is news.
    """

    def __init__(
        self,
        settings: PoolSettings,
        ground: Ground,
        places: Places,
        knowledge: Knowledge | None = None,
        clocks: Clocks | None = None,
        announce: Callable[[Mapping[str, bool]], None] = lambda roles: None,
    ):
        self._settings, self._ground, self._places = settings, ground, places
        self._knowledge, self._clocks = knowledge or Knowledge(settings), clocks or Clocks()
        self._announce = announce
        self._journal = Journal(places.workloads, self._clocks.wall() - self._clocks.monotonic())
        self._costs = CostKeeper(places.workloads, settings.devices)
        self._lock = threading.RLock()
        self._state: PoolState | None = None
        self._ticked_s = self._clocks.monotonic()
        self._looked_s = float("-inf")
        self._closed: str | None = None
        self._why_not = "the pool's controller is taking over; ask again"

    # --- what people ask; see `commands` for what each raises

    def submit(self, spec: WorkloadSpec) -> WorkloadReport:
        """Declare a workload; the next tick places it."""
        with self._lock:
            record = commands.submit(self._open(), spec, self._clocks.monotonic())
            shutil.rmtree(self._places.of(spec.name), ignore_errors=True)  # of an earlier one of that name
            return self._written(record)

    def preempt(self, name: str, reason: str) -> WorkloadReport:
        with self._lock:
            return self._written(commands.preempt(self._open(), self._applier(), name, reason))

    def cancel(self, name: str, reason: str) -> WorkloadReport:
        with self._lock:
            return self._written(commands.cancel(self._open(), self._applier(), name, reason))

    def resume(self, name: str) -> WorkloadReport:
        with self._lock:
            return self._written(commands.resume(self._open(), self._applier(), name))

    def migrate(self, name: str, device: str) -> WorkloadReport:
        with self._lock:
            state = self._open()
            health = state.health(device, self._clocks.monotonic(), self._settings.runtime.suspect_after_s)
            return self._written(commands.migrate(state, self._applier(), name, device, health))

    def warn(self, reason: str) -> None:
        """More of the devices will soon be needed: interruptible work saves what it has, and goes on."""
        with self._lock:
            commands.warn(self._open(), self._applier(), reason)

    def workloads(self) -> tuple[WorkloadReport, ...]:
        with self._lock:
            return workload_reports(self._open(), self._clocks.monotonic(), self._knowledge.of)

    def workload(self, name: str) -> WorkloadReport:
        """Raises NotFound listing the known names."""
        reports = {each.name: each for each in self.workloads()}
        if name not in reports:
            raise NotFound(f"no workload {name!r:.80}; known: {', '.join(reports) or 'none'}")
        return reports[name]

    def report(self) -> PoolReport:
        with self._lock:
            now_s = self._clocks.monotonic()
            suspect_after_s = self._settings.runtime.suspect_after_s
            return report(self._open(), now_s, now_s - self._ticked_s, suspect_after_s, self._knowledge.of)

    def costs(self) -> CostSummary:
        """Of this month. Raises Conflict while a device has no price; names the setting."""
        with self._lock:
            return self._costs.summary(self._open(), self._clocks.wall())

    # --- what serving replicas ask

    def claim(self, claim: Claim) -> Claimed:
        """A slice, granted or renewed. Raises as `claiming.claim_slice`."""
        with self._lock:
            state = self._open()
            lease = claim_slice(state, claim, self._clocks.monotonic())
            self._write(state)
            self._announce(roles(state))
            device, shadow = state.ledger.device(lease.device), state.stands_by(lease.id)
        self._knowledge.hear_claim(claim, device)
        return Claimed(lease, device, self._places.gates, self._settings.runtime.renew_s, shadow)

    def unclaim(self, holder: str) -> None:
        """A replica leaves."""
        with self._lock:
            give_back(self._open(), holder)
            self._write(self._open())

    # --- what happens by itself

    @property
    def closed(self) -> str | None:
        """Why it does nothing any more: another controller has taken over; None while it works."""
        return self._closed

    def stand_by(self, why: str) -> None:
        """What it says to those who ask before it takes over."""
        self._why_not = why

    def start(self) -> None:
        """Take over what runs.

        Raises:
            Fenced: a newer controller is at work. Anything else may pass, and start may be called again.
        """
        try:
            now_s = self._clocks.monotonic()
            state = take_over(self._ground, self._journal, self._settings, self._places.gates, now_s)
        except Fenced as error:
            self._close(error)
            raise
        except Exception as error:
            self._why_not = f"the pool's controller cannot take over: {error}"
            raise
        with self._lock:
            self._state = state
            self._write(state)

    def tick(self) -> None:
        """Once around. Raises Fenced when another controller has taken over."""
        polled = self._ground.poll(POLL_S)
        nodes, found = self._look(polled)
        with self._lock:
            state, now_s, wall_s = self._open(), self._clocks.monotonic(), self._clocks.wall()
            try:
                _refuse_if_fenced(polled, state.ledger.epoch)
                self._renew_sites(state, nodes, found)
                self._open_missing(state, polled)
                applier = self._applier()
                Settler(state, self._ground, applier, self._settings, now_s, wall_s).take(polled)
                self._knowledge.hear_results(polled.statuses, {key: each.device for key, each in state.sites.items()})
                seen = observe(state, now_s, self._settings, self._knowledge.of)
                decisions, state.planner = planner.tick(seen, state.planner, now_s, self._settings)
                applier.apply(decisions)
                self._announce(roles(state))
                self._costs.charge(state, now_s, wall_s)
                _explain(state)
                state.ledger.check_integrity()
                self._write(state)
            except Fenced as error:
                self._close(error)
                raise
            self._ticked_s = now_s

    def _look(self, polled: Polled) -> tuple[tuple[RayNode, ...], Mapping[str, NodeFound]]:
        """All nodes, when it is time or a host was lost, and what the agents of new ones find; without the lock."""
        now_s = self._clocks.monotonic()
        if not polled.lost and now_s - self._looked_s < NODES_S:
            return (), {}
        self._looked_s, nodes = now_s, self._ground.nodes()
        known = {site.node_id for site in self._open().sites.values()}
        new = [node.id for node in nodes if node.is_alive and node.id not in known]
        return nodes, self._ground.discover(new, self._places.gates, POLL_S) if new else {}

    def _renew_sites(self, state: PoolState, nodes: tuple[RayNode, ...], found: Mapping[str, NodeFound]) -> None:
        """Take in nodes that died, and the devices of new ones."""
        if nodes:
            alive = {node.id for node in nodes if node.is_alive}
            state.dead_nodes = frozenset({site.node_id for site in state.sites.values()} - alive)
        stated, prices = self._settings.devices, self._settings.price_per_hour
        for device_id, site in (sites_of(stated, nodes, found, prices) if found else {}).items():
            is_known = device_id in {device.id for device in state.ledger.devices()}
            if is_known and state.ledger.leases(device=device_id):
                continue  # its old node has died; those leases are lost first
            if is_known:
                state.ledger.withdraw_device(device_id, state.ledger.epoch)
            state.ledger.add_device(site.device, state.ledger.epoch)
            state.sites[device_id] = site

    def _open_missing(self, state: PoolState, polled: Polled) -> None:
        """Have gates where an agent has none: it is new, or was started again."""
        opened = {node: {each.device_id for each in reading.gates} for node, reading in polled.readings.items()}
        orders = gate_orders(state.sites, state.ledger.epoch, self._places.gates)
        missing = {
            node: order
            for node, order in orders.items()
            if node in opened and not {device.id for device in order.devices} <= opened[node]
        }
        if missing:
            self._ground.open_gates(missing, POLL_S)

    def _applier(self) -> Applier:
        return Applier(self._open(), self._ground, self._places, self._clocks.monotonic(), self._clocks.wall())

    def _written(self, record: Record) -> WorkloadReport:
        self._write(self._open())
        return record.report(self._clocks.monotonic())

    def _write(self, state: PoolState) -> None:
        try:
            self._journal.write(state.ledger, state.records, {key: each.claim for key, each in state.claims.items()})
        except Fenced as error:
            self._close(error)
            raise

    def _open(self) -> PoolState:
        if self._closed is not None:
            raise Conflict(self._closed)
        if self._state is None:
            raise Unavailable(self._why_not)
        return self._state

    def _close(self, why: Fenced) -> None:
        log.error("this controller ends: %s", why.message)
        self._closed = why.message if self._state is None else f"{why.message}; {self._state.ledger.book()}"


def _refuse_if_fenced(polled: Polled, epoch: int) -> None:
    """Raise Fenced when an actor refused an order, or has heard of a newer epoch."""
    if polled.fenced is not None:
        raise Fenced(polled.fenced)
    if polled.epoch > epoch:
        raise Fenced(f"epoch {epoch} is over, a controller of epoch {polled.epoch} has taken over")


def _explain(state: PoolState) -> None:
    """Let a workload that waits say why."""
    for name, reason in state.planner.waiting.items():
        record = state.records.get(name)
        if record is not None and record.phase in ("queued", "preempted") and not record.crashes_s:
            record.goes(record.phase, reason)
