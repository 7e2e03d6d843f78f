"""Take over: a controller that starts finds out what runs, in the order that `pool.ledger` demands."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from configs.errors import ArtifactError, RecpoolError
from configs.pool_settings import PoolSettings
from pool.lease import Lease, grant_order
from pool.ledger import Ledger
from pool.policy.observation import PlannerState
from pool.runtime.inventory import sites_of
from pool.runtime.journal import Journal
from pool.runtime.messages import Claim, GateOrder, HostStatus, NodeFound, Order, RayNode, Site, Survivors
from pool.runtime.records import OVER, Record
from pool.runtime.state import ClaimSeat, Crew, PoolState, Seat
from pool.workload import WorkloadState

log = logging.getLogger("recpool.pool")


class Ground(Crew, Protocol):
    """What a controller finds when it starts; these calls wait."""

    def nodes(self) -> tuple[RayNode, ...]: ...

    def discover(self, node_ids: Sequence[str], gates: Path, wait_s: float) -> Mapping[str, NodeFound]:
        """What the agents of some nodes find, those that answer; agents that are missing are started."""
        ...

    def open_gates(self, orders: Mapping[str, GateOrder], wait_s: float) -> None:
        """By node. Raises Fenced when a newer controller has taken one of them."""
        ...

    def survivors(self, wait_s: float) -> Survivors:
        """Hosts that exist, asked for their status; they are polled from here on."""
        ...

    def adopt(self, epoch: int, wait_s: float) -> Survivors:
        """Tell every host the new epoch. Raises Fenced when one obeys a newer one."""
        ...


def take_over(ground: Ground, journal: Journal, settings: PoolSettings, gates: Path, now_s: float) -> PoolState:
    """A state that agrees with what runs; every actor obeys its epoch and no older one.

    Args:
        now_s: monotonic.
    Raises:
        Fenced: a newer controller is at work.
        ConfigError: a device of the settings is not there.
    """
    wait_s = settings.runtime.takeover_s
    ledger, records, claims = _journalled(journal)
    nodes = ground.nodes()
    found = ground.discover([node.id for node in nodes if node.is_alive], gates, wait_s)
    sites = sites_of(settings.devices, nodes, found, settings.price_per_hour)
    seen = [status.epoch for status in ground.survivors(wait_s).statuses] + [each.epoch for each in found.values()]
    epoch = ledger.fence(after=max([ledger.epoch, *seen]))
    ground.open_gates(gate_orders(sites, epoch, gates), wait_s)
    alive = ground.adopt(epoch, wait_s)
    state = PoolState(ledger, records, sites=sites, planner=PlannerState())
    before = {lease.id: lease for lease in ledger.leases()}
    _renew_devices(ledger, sites)
    _adopt(state, ground, alive, before, claims, now_s)
    _settle_records(state, ground)
    state.heard_s = dict.fromkeys(found, now_s)
    return state


def gate_orders(sites: Mapping[str, Site], epoch: int, gates: Path) -> dict[str, GateOrder]:
    """By node."""
    nodes = {site.node_id for site in sites.values()}
    devices = {node: tuple(s.device for s in sites.values() if s.node_id == node) for node in nodes}
    return {node: GateOrder(epoch, gates, devices[node]) for node in nodes}


def _journalled(journal: Journal) -> tuple[Ledger, dict[str, Record], dict[str, Claim]]:
    try:
        return journal.read() or (Ledger(), {}, {})
    except ArtifactError as error:
        log.error("%s", error.message)
        return Ledger(), {}, {}


def _renew_devices(ledger: Ledger, sites: Mapping[str, Site]) -> None:
    """Devices as they are now; leases are not lost by this, as what the actors hold is adopted afterwards."""
    for device in ledger.devices():
        if device.id not in sites or sites[device.id].device != device:
            ledger.withdraw_device(device.id, ledger.epoch)
    present = {device.id for device in ledger.devices()}
    for device_id, site in sites.items():
        if device_id not in present:
            ledger.add_device(site.device, ledger.epoch)


def _adopt(
    state: PoolState,
    ground: Ground,
    alive: Survivors,
    before: Mapping[str, Lease],
    claims: Mapping[str, Claim],
    now_s: float,
) -> None:
    """Believe the hosts; of those that are there and silent, and of serving replicas until they renew, the journal."""
    statuses = {status.lease.id: status for status in alive.statuses}
    held = {lease_id: status.lease for lease_id, status in statuses.items() if status.phase != "ended"}
    held |= {lease_id: before[lease_id] for lease_id in [*alive.silent, *claims] if lease_id in before}
    adopted = _largest_adoptable(state.ledger, held)
    for lease_id in [*statuses, *alive.silent]:
        status = statuses.get(lease_id)
        if lease_id in adopted or (status is not None and status.phase == "ended"):
            lease = status.lease if status is not None else held[lease_id]
            state.seats[lease_id] = Seat(lease_id, lease.workload, lease.device, now_s)
            if status is not None:
                _remember(state, status, now_s)
        else:
            log.warning("lease %s has no place in the book; its host is ended", lease_id)
            ground.kill(lease_id)
    still_held = {lease_id: claim for lease_id, claim in claims.items() if lease_id in adopted}
    state.claims = {lease_id: ClaimSeat(claim, now_s, now_s) for lease_id, claim in still_held.items()}


def _largest_adoptable(ledger: Ledger, held: Mapping[str, Lease]) -> set[str]:
    """All leases, or where they contradict the devices as they are now, the oldest that fit."""
    kept: list[Lease] = []
    try:
        kept = list(ledger.adopt(held.values(), ledger.epoch))
    except RecpoolError as error:
        log.warning("%s", error.message)
        ledger.adopt([], ledger.epoch)
        for lease in sorted(held.values(), key=grant_order):
            try:
                kept = list(ledger.adopt([*kept, lease], ledger.epoch))
            except RecpoolError as refused:
                log.warning("%s", refused.message)
    return {lease.id for lease in kept}


def _remember(state: PoolState, status: HostStatus, now_s: float) -> None:
    """A workload that the journal did not know, or knew otherwise, as its host has it."""
    name = status.spec.name
    if name not in state.records:
        state.records[name] = Record(WorkloadState(status.spec, "starting", "found running"), now_s)
    record = state.records[name]
    if record.phase in ("queued", "preempted", "migrating") and not record.held and status.phase != "ended":
        record.goes("starting", "found running", status.lease.device)


def _settle_records(state: PoolState, ground: Crew) -> None:
    """Workloads that ran and have no host any more go back into the queue; it is no crash of theirs. Hosts whose
    workload is not to run are told so, perhaps for the second time."""
    running = {seat.workload for seat in state.seats.values()}
    for record in state.records.values():
        if record.phase in ("starting", "running", "migrating") and record.name not in running:
            record.goes("queued", "its process was gone when the controller came back")
        elif record.phase in OVER or record.held or record.phase == "parked":
            for seat in state.seats_of(record.name):
                seat.leaving = "preempt" if record.held else "stop"
                ground.tell(seat.lease, seat.leaving, Order(state.ledger.epoch, record.state.reason))
