"""Apply: decisions become entries in the book and words to the actors. Nothing here waits.

A slice is booked before a host starts on it and given back after the host has left, so a decision that needs a
slice whose host has not left yet is put off: the planner sees the pool as it is and decides it again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from configs.errors import Conflict, InvalidRequest, NotFound
from pool.lease import Lease
from pool.policy.decisions import (
    Decision,
    Grant,
    Migrate,
    Park,
    Preempt,
    PromoteShadow,
    Release,
    Requeue,
    Resume,
    SetShares,
    StandBy,
)
from pool.runtime import claiming
from pool.runtime.messages import Cut, Factory, HostOrder, Order, Verb
from pool.runtime.state import Crew, Leaving, PoolState, Seat

REFUSED = (Conflict, NotFound, InvalidRequest)


@dataclass(frozen=True)
class Places:
    """Where the files of a pool are, and how works are made."""

    workloads: Path
    gates: Path
    factory: Factory
    checkpoint_s: float

    def of(self, workload: str) -> Path:
        return self.workloads / workload


class Applier:
    """Carries out decisions on a state and the actors behind it.

    Args:
        now_s: monotonic; wall_s: seconds since 1970. Both of this tick.
    """

    def __init__(self, state: PoolState, crew: Crew, places: Places, now_s: float, wall_s: float):
        self._state, self._crew, self._places = state, crew, places
        self._now_s, self._wall_s = now_s, wall_s

    def apply(self, decisions: Iterable[Decision]) -> None:
        """In their order. What the book refuses is told as a decision that waits, and changes nothing."""
        for decision in decisions:
            match decision:
                case Grant() | Resume():
                    self._grant(decision)
                case Release():
                    self._end_lease(decision.lease, decision.workload, decision.device, decision.reason)
                case Requeue():
                    self._requeue(decision)
                case Preempt():
                    self._preempt(decision)
                case Migrate():
                    self._migrate(decision)
                case PromoteShadow():
                    self._promote(decision)
                case StandBy():
                    self._stand_by(decision)
                case SetShares():
                    self._cut(decision)
                case Park():
                    self._park(decision)

    def start(self, lease: Lease, waits_for: str | None = None) -> None:
        """Seat a host on a lease that is booked; it starts once the host it waits for has left."""
        seat = Seat(lease.id, lease.workload, lease.device, self._now_s, waits_for=waits_for)
        self._state.seats[lease.id] = seat
        if waits_for is None:
            self.begin(seat)

    def begin(self, seat: Seat) -> None:
        """Start the process of a seat."""
        state, record = self._state, self._state.records[seat.workload]
        lease, site = state.ledger.lease(seat.lease), state.sites[seat.device]
        seat.waits_for, seat.seen_s = None, self._now_s
        record.goes("starting", f"starts on {lease.device}", lease.device)
        order = HostOrder(
            epoch=state.ledger.epoch,
            lease=lease,
            spec=record.spec,
            device=site.device,
            index=site.index,
            gate_folder=self._places.gates,
            folder=self._places.of(record.name),
            factory=self._places.factory,
            checkpoint_s=self._places.checkpoint_s,
        )
        self._crew.start(order, site)

    def leave(self, seat: Seat, how: Leaving, reason: str) -> None:
        """Tell a host to leave; one that has not even started is gone at once."""
        if seat.waits_for is not None:
            self._state.release(seat.lease)
            del self._state.seats[seat.lease]
            return
        seat.leaving = how
        verb: Verb = "stop" if how == "stop" else "preempt"
        self._crew.tell(seat.lease, verb, Order(self._state.ledger.epoch, reason))

    def warn(self, seat: Seat, reason: str) -> None:
        """Let a host save what it has, and go on."""
        self._crew.tell(seat.lease, "warn", Order(self._state.ledger.epoch, reason))

    def move(self, seat: Seat, device: str, reason: str) -> Lease:
        """Book a slice elsewhere, and let the host there start once the one here has left.

        Raises:
            Conflict, NotFound, InvalidRequest: as `Ledger.grant`; nothing has changed then.
        """
        state = self._state
        held = state.ledger.lease(seat.lease)
        lease = state.ledger.grant(held.workload, device, held.milli, held.memory_bytes, state.ledger.epoch)
        state.records[seat.workload].goes("migrating", reason)
        self.leave(seat, "migrate", reason)
        self.start(lease, waits_for=seat.lease)
        return lease

    def note(self, about: str, what: str, reason: str) -> None:
        """Keep what was decided; see `PoolState.note`."""
        self._state.note(about, what, reason, self._wall_s)

    def _grant(self, decision: Grant | Resume) -> None:
        state, name = self._state, decision.workload
        record = state.records.get(name)
        if record is None:  # serving replicas are Serve's to start
            return
        verb = "resume" if isinstance(decision, Resume) else "start"
        if state.is_leaving(name) or decision.device not in state.sites:
            return
        amounts = decision.milli, decision.memory_bytes
        try:
            lease = state.ledger.grant(name, decision.device, *amounts, state.ledger.epoch)
        except REFUSED as error:
            self.note(name, f"{verb} {name} on {decision.device} waits", error.message)
            return
        record.placement = decision.reason
        self.note(name, f"{verb} {name} on {decision.device} with {decision.milli} milli", decision.reason)
        self.start(lease)

    def _end_lease(self, lease_id: str, name: str, device: str, reason: str) -> None:
        """The host leaves and the lease goes with it; at once, where the device is gone."""
        seat = self._state.seats.get(lease_id)
        self.note(lease_id, f"release {name} on {device}", reason)
        if seat is None or not self._is_there(device):
            self._drop(lease_id)
        elif seat.leaving is None:
            self.leave(seat, "stop", reason)

    def _requeue(self, decision: Requeue) -> None:
        self.note(decision.lease, f"requeue {decision.workload}", decision.reason)
        self._drop(decision.lease)
        record = self._state.records.get(decision.workload)
        if record is not None and record.phase not in ("queued", "preempted"):
            record.goes("queued", decision.reason)

    def _preempt(self, decision: Preempt) -> None:
        seat, record = self._state.seats.get(decision.lease), self._state.records.get(decision.workload)
        if seat is None or record is None:
            return
        self.note(decision.lease, f"preempt {decision.workload} on {decision.device}", decision.reason)
        record.goes("preempted" if record.phase == "running" else "queued", decision.reason)
        self.leave(seat, "preempt", decision.reason)

    def _migrate(self, decision: Migrate) -> None:
        seat, record = self._state.seats.get(decision.lease), self._state.records.get(decision.workload)
        what = f"migrate {decision.workload} from {decision.source} to {decision.device}"
        if seat is None or record is None or record.phase != "running" or seat.leaving:
            self.note(decision.lease, f"{what}: not now", decision.reason)
            return
        try:
            self.move(seat, decision.device, decision.reason)
        except REFUSED as error:
            self.note(decision.lease, f"{what} waits", error.message)
            return
        record.placement = decision.reason
        self.note(decision.lease, what, decision.reason)

    def _promote(self, decision: PromoteShadow) -> None:
        state, what = self._state, f"promote {decision.workload} on {decision.device}"
        if decision.lease in state.claims:  # it serves at once, and grows as others leave
            claiming.promote(state, decision.lease, self._now_s)
        else:
            try:
                state.ledger.resize(decision.lease, decision.milli, decision.memory_bytes, state.ledger.epoch)
            except REFUSED as error:
                self.note(decision.lease, f"{what} waits", error.message)
                return
        self.note(decision.lease, what, decision.reason)

    def _stand_by(self, decision: StandBy) -> None:
        if decision.lease in self._state.claims:
            claiming.stand_by(self._state, decision.lease, self._now_s)
            self.note(decision.lease, f"stand by {decision.workload} on {decision.device}", decision.reason)

    def _cut(self, decision: SetShares) -> None:
        site = self._state.sites.get(decision.device)
        if site is None or not self._is_there(decision.device):
            return
        weights: dict[str, int] = {}
        for lease_id, weight in decision.weights:
            name = self._state.ledger.lease(lease_id).workload
            weights[name] = weights.get(name, 0) + weight
        cut = ", ".join(f"{name} {weight}" for name, weight in sorted(weights.items()))
        self.note(decision.device, f"cut {decision.device}: {cut}", decision.reason)
        self._crew.cut(site.node_id, Cut(self._state.ledger.epoch, decision.device, weights))

    def _park(self, decision: Park) -> None:
        record = self._state.records.get(decision.workload)
        if record is not None:
            self.note(decision.workload, f"park {decision.workload}", decision.reason)
            record.goes("parked", f"{decision.reason}; last: {record.state.reason}")

    def _drop(self, lease_id: str) -> None:
        state = self._state
        state.release(lease_id)
        state.claims.pop(lease_id, None)
        if state.seats.pop(lease_id, None) is not None:
            self._crew.kill(lease_id)

    def _is_there(self, device: str) -> bool:
        site = self._state.sites.get(device)
        return site is not None and site.node_id not in self._state.dead_nodes
