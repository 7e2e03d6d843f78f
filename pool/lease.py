"""Leases: who holds how much of which device, and since which epoch."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from configs.errors import Conflict, InvalidRequest
from pool.device import CAPACITY_MILLI, MOST_MEMORY_BYTES, Device, is_whole
from pool.workload import WORKLOAD_NAME

FIRST_EPOCH = 1
LAST_EPOCH = 10**15 - 1
"""Far above any real count, and still exact where JSON numbers are doubles."""
MOST_NAMED = 16
"""Devices, and leases on each, that a message names; it stays readable on a large pool."""
_ID = re.compile(r"[1-9][0-9]{0,14}-[1-9][0-9]{0,14}")


@dataclass(frozen=True)
class Lease:
    """A slice of one device that one workload is sure of.

    Attributes:
        id: ``<epoch>-<number>`` of its grant, kept through every change. Two controllers never grant in
            one epoch, so an id is never given twice, even where a controller's last writes were lost.
        milli: thousandths of the device, 0-1000; 0 holds memory only, as a warm copy does.
        epoch: in which it was granted, changed or adopted last.
    """

    id: str
    workload: str
    device: str
    milli: int
    memory_bytes: int
    epoch: int

    def __str__(self) -> str:
        return f"{self.workload} {self.milli} milli {self.memory_bytes} bytes ({self.id})"


def id_of_grant(epoch: int, number: int) -> str:
    return f"{epoch}-{number}"


def grant_order(lease: Lease) -> tuple[int, int]:
    """Epoch and number of the grant of a well-formed lease: the sort key for oldest first."""
    epoch, number = lease.id.split("-")
    return int(epoch), int(number)


def lease_fault(lease: Lease) -> tuple[str, str] | None:
    """What is wrong with a lease by itself, as (field, reason); None when it is well-formed."""
    if not isinstance(lease.id, str) or not _ID.fullmatch(lease.id):
        return "id", f"lease id {lease.id!r:.80} is not <epoch>-<number>"
    if not isinstance(lease.workload, str) or not re.fullmatch(WORKLOAD_NAME, lease.workload):
        return "workload", f"workload {lease.workload!r:.80} does not match {WORKLOAD_NAME}"
    if not isinstance(lease.device, str):
        return "device", f"device {lease.device!r:.80} is no name"
    if not is_whole(lease.epoch) or not grant_order(lease)[0] <= lease.epoch <= LAST_EPOCH:
        return "epoch", f"epoch {lease.epoch!r:.40} of lease {lease.id} is no whole number from the epoch of its grant"
    return amount_fault(lease.milli, lease.memory_bytes)


def amount_fault(milli: int, memory_bytes: int) -> tuple[str, str] | None:
    """What is wrong with the amounts of a slice, as (field, reason); None when a device may have them."""
    if not is_whole(milli) or not 0 <= milli <= CAPACITY_MILLI:
        return "milli", f"milli {milli!r:.40} is no whole number from 0 to {CAPACITY_MILLI}"
    if not is_whole(memory_bytes) or not 0 <= memory_bytes <= MOST_MEMORY_BYTES:
        return "memory_bytes", f"memory_bytes {memory_bytes!r:.40} is no whole number from 0 to {MOST_MEMORY_BYTES}"
    return None


def in_grant_order(claims: Iterable[Lease], newest_epoch: int) -> list[Lease]:
    """Check claims against each other and sort them, oldest grant first.

    Raises:
        InvalidRequest: a claim is malformed.
        Conflict: an id is claimed twice, or a claim is of an epoch after the newest.
    """
    seen: dict[str, Lease] = {}
    for claim in claims:
        fault = lease_fault(claim)
        if fault:
            raise InvalidRequest(f"claim {claim.id!r:.80}: {fault[1]}", fault[0])
        if claim.epoch > newest_epoch:
            raise Conflict(f"claim {claim} is of epoch {claim.epoch}, after this ledger's {newest_epoch}")
        if claim.id in seen:
            first = seen[claim.id]
            raise Conflict(f"lease {claim.id} is claimed twice: {first} on {first.device}, {claim} on {claim.device}")
        seen[claim.id] = claim
    return sorted(seen.values(), key=grant_order)


def device_line(device: Device, held: Sequence[Lease]) -> str:
    """A device and the leases on it, in words, in one line."""
    milli, memory_bytes = sum(lease.milli for lease in held), sum(lease.memory_bytes for lease in held)
    tenants = listed(held, len(held), ", ") or "nobody"
    amounts = f"{milli}/{CAPACITY_MILLI} milli, {memory_bytes}/{device.memory_bytes} bytes"
    return f"{device.id} [{device.label}] {amounts} leased to {tenants}"


def listed(things: Iterable[object], total: int, separator: str) -> str:
    """The first things in a line, at most MOST_NAMED, then how many more of the total there are."""
    named = [str(each) for each in islice(things, MOST_NAMED)]
    more = total - len(named)
    return separator.join([*named, f"and {more} more"] if more else named)
