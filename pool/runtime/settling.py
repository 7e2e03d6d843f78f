"""Settle: what the actors said becomes phases, leases given back, and crashes counted."""

from __future__ import annotations

from configs.pool_settings import PoolSettings
from pool.runtime.applying import Applier
from pool.runtime.claiming import gone
from pool.runtime.messages import HostStatus, Order, Polled
from pool.runtime.state import Crew, PoolState, Seat
from pool.work import Progress


class Settler:
    """Takes in what one poll brought.

    Args:
        now_s: monotonic; wall_s: seconds since 1970.
    """

    def __init__(
        self, state: PoolState, crew: Crew, applier: Applier, settings: PoolSettings, now_s: float, wall_s: float
    ):
        self._state, self._crew, self._applier = state, crew, applier
        self._settings, self._now_s, self._wall_s = settings, now_s, wall_s

    def take(self, polled: Polled) -> None:
        for node_id, node in polled.readings.items():
            self._state.heard_s[node_id] = self._now_s
            for reading in node.gates:
                self._state.read(reading)
        for status in polled.statuses:
            seat = self._state.seats.get(status.lease.id)
            if seat is not None:
                self._hear(seat, status)
        for lease_id, why in polled.lost.items():
            seat = self._state.seats.get(lease_id)
            if seat is not None:
                self._lose(seat, why)
        self._end_silent()
        self._end_gone()
        self._end_unrenewed()
        self._warn()

    def _hear(self, seat: Seat, status: HostStatus) -> None:
        if seat.status is not None and seat.status.progress is not None and status.progress is not None:
            seat.steps_per_s = _speed(seat.status.progress, status.progress, self._now_s - seat.seen_s)
        seat.status, seat.seen_s = status, self._now_s
        record = self._state.records.get(seat.workload)
        if record is not None:
            record.told(status)
        if status.stands:
            self._shrink(status)
        if status.phase == "ended":
            self._settle(seat, status)

    def _shrink(self, status: HostStatus) -> None:
        """Book what a host has given back of its slice by itself."""
        state, held = self._state, self._state.ledger.lease(status.lease.id)
        if status.lease.milli < held.milli:
            state.ledger.resize(held.id, status.lease.milli, held.memory_bytes, state.ledger.epoch)
            self._note(held.id, f"{held.workload} stands by on {held.device}", "its work is done; its share is free")

    def _settle(self, seat: Seat, status: HostStatus) -> None:
        """It has left its device: the lease goes back, and the workload on."""
        self._gone(seat)
        record = self._state.records.get(seat.workload)
        if record is None:
            return
        if status.end == "succeeded" and record.phase not in ("cancelled", "parked"):
            self._call_off(seat)
            record.result, record.held = status.result, False
            record.goes("succeeded", status.reason)
            self._note(record.name, f"{record.name} succeeded", status.reason)
        elif status.end == "failed" and record.phase in ("starting", "running", "migrating"):
            self._call_off(seat)
            record.goes("failed", status.reason)
            self._note(record.name, f"{record.name} failed", status.reason)
        elif status.end == "crashed":
            self._crashed(seat, status.reason)
        else:
            if status.end == "preempted" and seat.leaving is None:
                record.goes("preempted", "it was told to yield at the gate of its device")
            self._go_on(seat)

    def _lose(self, seat: Seat, why: str) -> None:
        """Its process is gone. Together with its node that is no fault of the work's."""
        if self._is_dead(seat) and seat.leaving is None:
            return  # the planner sees the lease on a dead device, and requeues it
        self._gone(seat)
        self._crashed(seat, why)

    def _crashed(self, seat: Seat, why: str) -> None:
        record = self._state.records.get(seat.workload)
        if record is None or seat.leaving == "stop":
            return
        if seat.leaving is not None:  # it was on its way out; its last checkpoint is what there is
            self._go_on(seat)
            return
        record.crashed(self._now_s, why, self._settings.breaker.window_s)
        self._note(record.name, f"{record.name} crashed ({record.state.restarts})", why)

    def _go_on(self, seat: Seat) -> None:
        """Start the host that waited for this one to leave."""
        for other in [each for each in self._state.seats.values() if each.waits_for == seat.lease]:
            self._applier.begin(other)

    def _call_off(self, seat: Seat) -> None:
        """Nothing is left to be done elsewhere."""
        for other in [each for each in self._state.seats.values() if each.waits_for == seat.lease]:
            self._applier.leave(other, "stop", "it has ended")

    def _gone(self, seat: Seat) -> None:
        self._state.release(seat.lease)
        self._state.seats.pop(seat.lease, None)
        self._crew.kill(seat.lease)

    def _end_silent(self) -> None:
        """A host that hangs is ended; its loss is noticed as that of any other."""
        limit_s = self._settings.runtime.silent_after_s
        for seat in list(self._state.seats.values()):
            if seat.leaving is not None and self._is_dead(seat):  # the planner is not shown what leaves
                self._lose(seat, "its node is gone")
            elif seat.waits_for is None and self._now_s - seat.seen_s > limit_s:
                self._lose(seat, f"it said nothing for {limit_s:g} s")

    def _end_gone(self) -> None:
        """A serving replica whose process has ended needs its slice no more, and others are to know at once."""
        for lease_id in gone(self._state):
            self._end_claim(lease_id, "its process is gone")

    def _end_unrenewed(self) -> None:
        ttl_s = self._settings.runtime.claim_ttl_s
        for lease_id, claimed in list(self._state.claims.items()):
            if self._now_s - claimed.seen_s > ttl_s:
                self._end_claim(lease_id, f"it did not renew for {ttl_s:g} s")

    def _end_claim(self, lease_id: str, why: str) -> None:
        claimed = self._state.claims.pop(lease_id)
        self._state.release(lease_id)
        self._note(lease_id, f"release {claimed.claim.workload}", why)

    def _warn(self) -> None:
        """Let the work on a device that may be lost save what it has, once."""
        suspect_after_s = self._settings.runtime.suspect_after_s
        for seat in self._state.seats.values():
            is_suspect = self._state.health(seat.device, self._now_s, suspect_after_s) == "suspect"
            if is_suspect and not seat.warned and seat.waits_for is None:
                reason = f"the agent of {seat.device} is silent"
                self._crew.tell(seat.lease, "warn", Order(self._state.ledger.epoch, reason))
            seat.warned = is_suspect

    def _is_dead(self, seat: Seat) -> bool:
        site = self._state.sites.get(seat.device)
        return site is None or site.node_id in self._state.dead_nodes

    def _note(self, about: str, what: str, reason: str) -> None:
        self._state.note(about, what, reason, self._wall_s)


def _speed(before: Progress, after: Progress, elapsed_s: float) -> float | None:
    return max(0.0, (after.done - before.done) / elapsed_s) if elapsed_s > 0 else None
