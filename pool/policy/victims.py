"""Who gives way when a workload fits nowhere: the least important first, then as few as can be, then the smallest."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import combinations, product

from pool.policy.rooms import DeviceRoom
from pool.workload import RANK, WorkloadPriority, WorkloadSpec

EXACT = 12
"""Tenants of a device up to which every choice of victims is tried (4,096 of them); above, it is a greedy one."""


@dataclass(frozen=True)
class Tenant:
    """A lease that may be asked to give way."""

    lease: str
    workload: str
    rank: WorkloadPriority
    milli: int
    memory_bytes: int


@dataclass(frozen=True)
class MadeRoom:
    """A device, and the leases on it that give way to a workload."""

    device_id: str
    victims: tuple[Tenant, ...]


Price = tuple[int, int, int]
"""Burstable victims, best-effort victims, share they lose; the lowest is the best."""


class Clearings:
    """Who would have to give way on each device, for every size that was asked for.

    It is remembered until the device changes, so that a wave of like work looks at each device once.

    Args:
        rooms: by device; tenants: leases by device. Both are read when somebody asks; who changes them calls `change`.
    """

    def __init__(self, rooms: Mapping[str, DeviceRoom], tenants: Mapping[str, Sequence[Tenant]]):
        self._rooms, self._tenants = rooms, tenants
        self._asked: dict[tuple[object, ...], _Asked] = {}

    def change(self, device: str) -> None:
        """What is free on a device, or held there, is another now."""
        for asked in self._asked.values():
            asked.stale.add(device)

    def cheapest(
        self, spec: WorkloadSpec, avoid: Collection[str] = (), copies_on: Collection[str] = ()
    ) -> MadeRoom | None:
        """The cheapest victims that let a workload in, over all devices; None when no lower priority holds enough.

        Burstable work gives way only where best-effort work alone does not suffice on any device. Of as many
        victims, those on a device without a copy of the workload are cheaper. Work of the workload's own rank
        or above never gives way.

        Args:
            copies_on: devices that hold a copy of the workload.
        """
        size = spec.rank, spec.tier, spec.min_milli, spec.memory_bytes
        asked = self._asked.get(size)
        if asked is None:
            able = {name for name, room in self._rooms.items() if room.open and room.device.kind in spec.tier}
            asked = self._asked[size] = _Asked(able, set(able))
        for name in asked.stale & asked.able:
            asked.put(name, _givers(spec, self._rooms[name], self._tenants.get(name, ())))
        asked.stale.clear()
        return asked.cheapest(avoid, copies_on)


Choice = tuple[int, int, int, str, int, tuple[Tenant, ...]]
"""Price, device, a number that no other choice has, and the victims."""


@dataclass
class _Asked:
    """The choices for one size: by device, and the cheapest first; those of devices that changed stay in the heap
    until they come up."""

    able: set[str]
    stale: set[str]
    choices: dict[str, Choice] = field(default_factory=dict)
    heap: list[Choice] = field(default_factory=list)
    count: int = 0

    def put(self, name: str, victims: tuple[Tenant, ...] | None) -> None:
        self.choices.pop(name, None)
        if victims is not None:
            self.count += 1
            choice = self.choices[name] = (*price(victims), name, self.count, victims)
            heappush(self.heap, choice)

    def cheapest(self, avoid: Collection[str], copies_on: Collection[str]) -> MadeRoom | None:
        while self.heap and self.choices.get(self.heap[0][3]) is not self.heap[0]:
            heappop(self.heap)
        best = self.heap[0] if self.heap else None
        if avoid or copies_on:
            allowed = (choice for name, choice in self.choices.items() if name not in avoid)
            best = min(allowed, key=lambda it: (it[0], it[1], it[3] in copies_on, it[2], it[3]), default=None)
        return None if best is None else MadeRoom(best[3], best[5])


def _givers(spec: WorkloadSpec, room: DeviceRoom, tenants: Sequence[Tenant]) -> tuple[Tenant, ...] | None:
    """Who gives way on one device; the common case, a single best-effort victim, is found in one pass."""
    lack_milli, lack_bytes = spec.min_milli - room.free_milli, spec.memory_bytes - room.free_bytes
    lower = [each for each in tenants if RANK[each.rank] > RANK[spec.rank]]
    if lack_milli > 0 or lack_bytes > 0:
        able = [each for each in lower if each.milli >= lack_milli and each.memory_bytes >= lack_bytes]
        single = [(each.milli, each.lease, each) for each in able if each.rank == "best_effort"]
        if single:
            return (min(single)[2],)
    return choose_victims(lower, lack_milli, lack_bytes)


def choose_victims(lower: Sequence[Tenant], lack_milli: int, lack_bytes: int) -> tuple[Tenant, ...] | None:
    """The cheapest of some tenants that free so much together; None when all of them do not."""
    if not _enough(lower, lack_milli, lack_bytes):
        return None
    gentle = [each for each in lower if each.rank == "best_effort"]
    if _enough(gentle, lack_milli, lack_bytes):
        lower = gentle
    ordered = sorted(lower, key=lambda each: (-RANK[each.rank], -each.milli, -each.memory_bytes, each.lease))
    if len(ordered) > EXACT:
        return _greedy(ordered, lack_milli, lack_bytes)
    return _exact(ordered, lack_milli, lack_bytes)


def price(victims: Sequence[Tenant]) -> Price:
    burstable = sum(each.rank == "burstable" for each in victims)
    return burstable, len(victims) - burstable, sum(each.milli for each in victims)


def _enough(victims: Sequence[Tenant], lack_milli: int, lack_bytes: int) -> bool:
    return (
        sum(each.milli for each in victims) >= lack_milli and sum(each.memory_bytes for each in victims) >= lack_bytes
    )


def _exact(ordered: Sequence[Tenant], lack_milli: int, lack_bytes: int) -> tuple[Tenant, ...] | None:
    """Try few before many; the first number of victims that can suffice holds the cheapest choice."""
    firm = [each for each in ordered if each.rank == "burstable"]
    soft = [each for each in ordered if each.rank != "burstable"]
    for some, others in product(range(len(firm) + 1), range(len(soft) + 1)):
        pairs = product(combinations(firm, some), combinations(soft, others))
        enough = [f + s for f, s in pairs if _enough(f + s, lack_milli, lack_bytes)]
        if enough:
            return min(enough, key=price)
    return None


def _greedy(ordered: Sequence[Tenant], lack_milli: int, lack_bytes: int) -> tuple[Tenant, ...]:
    """Take the least important, largest first, until it is enough; then spare whom it can do without, the most
    important first and the smallest of them."""
    taken: list[Tenant] = []
    for each in ordered:
        if _enough(taken, lack_milli, lack_bytes):
            break
        taken.append(each)
    for each in reversed(list(taken)):
        rest = [other for other in taken if other is not each]
        if _enough(rest, lack_milli, lack_bytes):
            taken = rest
    return tuple(taken)
