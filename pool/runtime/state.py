"""The controller's memory: the book, the workloads, who runs where, and what the gates say."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, Protocol

from configs.errors import Conflict
from pool.gate.readings import GateReading
from pool.ledger import Ledger
from pool.policy.observation import DeviceHealth, PlannerState
from pool.runtime.messages import Claim, Cut, HostOrder, HostStatus, Order, Polled, Site, Verb
from pool.runtime.records import Record
from pool.views import DecisionReport

DECISIONS_KEPT = 200
METERED_OVER_NS = 1_000_000_000
"""Metered shares are those of the last second."""

Leaving = Literal["preempt", "stop", "migrate"]


class Fenced(Conflict):
    """A controller of a newer epoch has taken over; this one says nothing more."""


class Crew(Protocol):
    """The actors that obey the controller. Nothing here waits for them; `poll` tells what came of it."""

    def start(self, order: HostOrder, site: Site) -> None:
        """Start a host."""
        ...

    def tell(self, lease_id: str, verb: Verb, order: Order) -> None: ...

    def kill(self, lease_id: str) -> None:
        """End a host's process; one that is gone is no error."""
        ...

    def cut(self, node_id: str, cut: Cut) -> None: ...

    def poll(self, wait_s: float) -> Polled:
        """Ask all that are not being asked, and collect what answers within ``wait_s``."""
        ...


@dataclass
class Seat:
    """A host and the lease it has.

    Attributes:
        leaving: what it was told; it has the lease until it has left.
        waits_for: lease of the host that must have left before this one starts.
        seen_s: when it was last heard of, or started.
        steps_per_s: units of its work, lately.
    """

    lease: str
    workload: str
    device: str
    seen_s: float
    leaving: Leaving | None = None
    waits_for: str | None = None
    status: HostStatus | None = None
    steps_per_s: float | None = None
    warned: bool = False


@dataclass
class ClaimSeat:
    """A serving replica and the lease it has; it renews that by itself.

    Attributes:
        claim: its last, with the role and the lease that it has now.
        since_s: monotonic, when it was granted, or changed its role.
        joined: its process was seen at the gate of its device.
    """

    claim: Claim
    seen_s: float
    since_s: float
    joined: bool = False


@dataclass
class PoolState:
    """Everything a tick works on. One thread at a time.

    Attributes:
        heard_s: when the agent of a node last answered, by node.
        gates: last readings of a device, a second apart at least.
        said: the last decision about each thing, so that one that takes several ticks is told once.
    """

    ledger: Ledger
    records: dict[str, Record] = field(default_factory=dict)
    seats: dict[str, Seat] = field(default_factory=dict)
    claims: dict[str, ClaimSeat] = field(default_factory=dict)
    sites: dict[str, Site] = field(default_factory=dict)
    dead_nodes: frozenset[str] = frozenset()
    heard_s: dict[str, float] = field(default_factory=dict)
    gates: dict[str, deque[GateReading]] = field(default_factory=dict)
    planner: PlannerState = PlannerState()
    decisions: deque[DecisionReport] = field(default_factory=lambda: deque(maxlen=DECISIONS_KEPT))
    said: dict[str, tuple[str, str]] = field(default_factory=dict)

    def seats_of(self, workload: str, also_leaving: bool = False) -> list[Seat]:
        seats = [seat for seat in self.seats.values() if seat.workload == workload]
        return [seat for seat in seats if also_leaving or seat.leaving is None]

    def stands_by(self, lease_id: str) -> bool:
        """Whether it is the lease of a replica that serves nothing until it is promoted."""
        seat = self.claims.get(lease_id)
        return seat is not None and seat.claim.shadow

    def is_leaving(self, workload: str) -> bool:
        return any(seat.leaving for seat in self.seats.values() if seat.workload == workload)

    def health(self, device_id: str, now_s: float, suspect_after_s: float) -> DeviceHealth:
        site = self.sites.get(device_id)
        if site is None or site.node_id in self.dead_nodes:
            return "dead"
        heard_s = self.heard_s.get(site.node_id)
        return "alive" if heard_s is not None and now_s - heard_s <= suspect_after_s else "suspect"

    def release(self, lease_id: str) -> None:
        """Take a lease out of the book, if it is in it."""
        if any(lease.id == lease_id for lease in self.ledger.leases()):
            self.ledger.release(lease_id, self.ledger.epoch)

    def note(self, about: str, what: str, reason: str, at_s: float) -> None:
        """Keep a decision; the same about the same thing again is not told again.

        Args:
            at_s: seconds since 1970.
        """
        if self.said.get(about) != (what, reason):
            self.said[about] = what, reason
            self.decisions.append(DecisionReport(at_s, what, reason))

    def read(self, reading: GateReading) -> None:
        """Keep a reading, and those before it as far as the last second reaches."""
        kept = self.gates.setdefault(reading.device_id, deque())
        kept.append(reading)
        while len(kept) > 2 and reading.at_ns - kept[1].at_ns >= METERED_OVER_NS:
            kept.popleft()

    def reading_pairs(self) -> Iterator[tuple[str, GateReading, GateReading]]:
        """Of each device: its id, a reading about a second ago, and the last one."""
        for device_id, kept in self.gates.items():
            yield device_id, kept[0], kept[-1]
