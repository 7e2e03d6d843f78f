"""Who gives way when a workload fits nowhere: the least important first, then as few as can be, then the smallest."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, product

from pool.policy.placement import DeviceRoom
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


def make_room(
    spec: WorkloadSpec,
    rooms: Iterable[DeviceRoom],
    tenants: Mapping[str, Sequence[Tenant]],
    avoid: Collection[str] = (),
    copies_on: Collection[str] = (),
) -> MadeRoom | None:
    """The cheapest victims that let a workload in, over all devices; None when no lower priority holds enough.

    Burstable work gives way only where best-effort work alone does not suffice on any device. Of as many
    victims, those on a device without a copy of the workload are cheaper.

    Args:
        tenants: leases by device; those of the workload's own rank or above never give way.
        copies_on: devices that hold a copy of the workload.
    """
    able = [room for room in rooms if room.open and room.device.kind in spec.tier and room.device.id not in avoid]
    one = _one_victim(spec, able, tenants, copies_on)
    if one is not None:
        return one
    best: tuple[tuple[int, int, bool, int, str], tuple[Tenant, ...]] | None = None
    for room in able:
        name = room.device.id
        lower = [each for each in tenants.get(name, ()) if RANK[each.rank] > RANK[spec.rank]]
        lack_milli, lack_bytes = spec.min_milli - room.free_milli, spec.memory_bytes - room.free_bytes
        victims = choose_victims(lower, lack_milli, lack_bytes, best[0][:2] if best else None)
        if victims is not None:
            firm, soft, milli = price(victims)
            cost = (firm, soft, name in copies_on, milli, name)
            best = (cost, victims) if best is None or cost < best[0] else best
    return None if best is None else MadeRoom(best[0][4], best[1])


def _one_victim(
    spec: WorkloadSpec,
    able: Sequence[DeviceRoom],
    tenants: Mapping[str, Sequence[Tenant]],
    copies_on: Collection[str],
) -> MadeRoom | None:
    """The common case, found in one pass: a single best-effort victim, which nothing is cheaper than."""
    best: tuple[tuple[bool, int, str, str], Tenant] | None = None
    if spec.rank == "best_effort":
        return None
    for room in able:
        name = room.device.id
        lack_milli, lack_bytes = spec.min_milli - room.free_milli, spec.memory_bytes - room.free_bytes
        if lack_milli <= 0 and lack_bytes <= 0:
            return MadeRoom(name, ())
        for each in tenants.get(name, ()):
            if each.milli >= lack_milli and each.memory_bytes >= lack_bytes and each.rank == "best_effort":
                cost = (name in copies_on, each.milli, name, each.lease)
                best = (cost, each) if best is None or cost < best[0] else best
    return None if best is None else MadeRoom(best[0][2], (best[1],))


def choose_victims(
    lower: Sequence[Tenant], lack_milli: int, lack_bytes: int, most: tuple[int, int] | None = None
) -> tuple[Tenant, ...] | None:
    """The cheapest of some tenants that free so much together; None when all of them do not.

    Args:
        most: burstable and best-effort victims of a choice already known; None for one that takes more, too.
    """
    if not _enough(lower, lack_milli, lack_bytes):
        return None
    gentle = [each for each in lower if each.rank == "best_effort"]
    if _enough(gentle, lack_milli, lack_bytes):
        lower = gentle
    ordered = sorted(lower, key=lambda each: (-RANK[each.rank], -each.milli, -each.memory_bytes, each.lease))
    if len(ordered) > EXACT:
        return _greedy(ordered, lack_milli, lack_bytes)
    return _exact(ordered, lack_milli, lack_bytes, most or (len(ordered), 0))


def price(victims: Sequence[Tenant]) -> Price:
    burstable = sum(each.rank == "burstable" for each in victims)
    return burstable, len(victims) - burstable, sum(each.milli for each in victims)


def _enough(victims: Sequence[Tenant], lack_milli: int, lack_bytes: int) -> bool:
    return (
        sum(each.milli for each in victims) >= lack_milli and sum(each.memory_bytes for each in victims) >= lack_bytes
    )


def _exact(
    ordered: Sequence[Tenant], lack_milli: int, lack_bytes: int, most: tuple[int, int]
) -> tuple[Tenant, ...] | None:
    """Try few before many; the first number of victims that can suffice holds the cheapest choice."""
    firm = [each for each in ordered if each.rank == "burstable"]
    soft = [each for each in ordered if each.rank != "burstable"]
    for some, others in product(range(len(firm) + 1), range(len(soft) + 1)):
        if (some, others) > most:
            break
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
