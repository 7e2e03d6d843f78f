"""The ledger: the book of leases, who holds how much of which device.

It is pure and in memory: no Ray, no clock, no files; its one writer is a controller. Amounts are whole
milli-units and bytes, so nothing is ever over-committed by a rounding error. A refused change raises and
leaves the book as it was.

How a restarted controller takes over from the one before it, which may still live:

1. ``Ledger.from_json`` of the journal, or ``Ledger(devices)`` when there is none.
2. ``fence(after=the newest epoch any actor has seen)``.
3. Tell every actor the new epoch, also those without a lease. Each answers with the leases it holds, and from
   here on refuses the earlier controller.
4. ``adopt`` those leases: the actors are right, the journal may be some writes behind.

A slice is booked here before an actor uses it, and given back here after the actor has let go of it; so a
controller killed between the two never leaves a slice with two holders.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from configs.errors import Conflict, InvalidRequest, NotFound, RecpoolError
from pool.device import CAPACITY_MILLI, Device, is_whole
from pool.lease import (
    FIRST_EPOCH,
    LAST_EPOCH,
    Lease,
    amount_fault,
    device_line,
    grant_order,
    id_of_grant,
    in_grant_order,
    lease_fault,
    listed,
)
from pool.ledger_journal import damaged, decode, encode


class Ledger:
    """Leases on devices, changed only in the newest epoch.

    Every change states the epoch its caller was given by ``fence``; any other than the newest is refused
    with Conflict. A lease of an older epoch stays valid: what runs goes on.
    """

    def __init__(self, devices: Iterable[Device] = ()):
        self._devices: dict[str, Device] = {}
        self._leases: dict[str, Lease] = {}  # by id, oldest grant first
        self._tenants: dict[str, dict[str, None]] = {}  # ids of the leases of each device
        self._epoch = FIRST_EPOCH
        self._granted = 0  # in this epoch
        for device in devices:
            self._install(device)

    @property
    def epoch(self) -> int:
        """The newest, the only one that may change the book."""
        return self._epoch

    def fence(self, after: int = 0) -> int:
        """Start a new epoch, also above ``after``, the newest that the actors have seen, and return it."""
        if not is_whole(after) or not 0 <= after < LAST_EPOCH:
            raise InvalidRequest(f"after {after!r:.40} is no epoch from 0 to {LAST_EPOCH - 1}; {self.book()}", "after")
        if self._epoch >= LAST_EPOCH:
            raise Conflict(f"no epoch is left after {self._epoch}; {self.book()}")
        self._epoch = max(self._epoch, after) + 1
        self._granted = 0
        return self._epoch

    def grant(self, workload: str, device_id: str, milli: int, memory_bytes: int, epoch: int) -> Lease:
        """Lease a slice; a workload may hold several, one for each of its replicas.

        Raises:
            Conflict: a stale epoch, or the device has not that much left.
            NotFound: no such device.
            InvalidRequest: a malformed name, milli out of 0-1000, or more memory than the whole device has.
        """
        self._check_epoch(epoch, device_id)
        number = self._granted + 1
        lease = Lease(id_of_grant(self._epoch, number), workload, device_id, milli, memory_bytes, self._epoch)
        self._enter(lease)
        self._granted = number
        return lease

    def resize(self, lease_id: str, milli: int, memory_bytes: int, epoch: int) -> Lease:
        """Give a lease other amounts on its device; raises as ``grant``, and NotFound for an unknown lease."""
        return self._change(lease_id, epoch, milli=milli, memory_bytes=memory_bytes)

    def move(self, lease_id: str, device_id: str, epoch: int) -> Lease:
        """Take a lease to another device, amounts unchanged; raises as ``grant``, and NotFound for the lease."""
        return self._change(lease_id, epoch, device=device_id)

    def release(self, lease_id: str, epoch: int) -> Lease:
        """Give a lease back and return it; raises Conflict for a stale epoch, NotFound for an unknown lease."""
        self._check_epoch(epoch, self._device_of(lease_id))
        lease = self.lease(lease_id)
        self._drop(lease)
        return lease

    def release_all(self, workload: str, epoch: int) -> tuple[Lease, ...]:
        """Give back all leases of a workload and return them; none is no error. Raises Conflict for a stale epoch."""
        self._check_epoch(epoch)
        held = self.leases(workload=workload)
        for lease in held:
            self._drop(lease)
        return held

    def add_device(self, device: Device, epoch: int) -> None:
        """Raises Conflict for a stale epoch or an id that is taken."""
        self._check_epoch(epoch, device.id)
        self._install(device)

    def withdraw_device(self, device_id: str, epoch: int) -> tuple[Lease, ...]:
        """Take a device out, dead or drained, and return the leases lost with it.

        Raises:
            Conflict: a stale epoch.
            NotFound: no such device.
        """
        self._check_epoch(epoch, device_id)
        lost = self.leases(device=device_id)
        for lease in lost:
            self._drop(lease)
        del self._devices[device_id], self._tenants[device_id]
        return lost

    def adopt(self, leases: Iterable[Lease], epoch: int) -> tuple[Lease, ...]:
        """Replace the book with what actors say they hold, all or nothing.

        Leases of the book that nobody claims are gone. Returns the adopted leases, oldest grant first; they
        are of this epoch from here on.

        Raises:
            Conflict: a stale epoch, an id claimed twice, claims that over-commit a device, or a claim of an
                epoch after this one: then a newer controller is at work, or ``fence(after=…)`` was forgotten.
            NotFound: a claim on an unknown device.
            InvalidRequest: a malformed claim, or one for more memory than its device has.
        """
        self._check_epoch(epoch)
        adopted = Ledger(self._devices.values())
        adopted._epoch = self._epoch
        try:
            adopted._load(leases, self._epoch)
        except RecpoolError as error:
            why = f"nothing is adopted: {error.message}; the book stays {self.book()}"
            raise type(error)(why, *error.args[1:]) from None
        # An id of this epoch that only an actor knows of: the grant was not yet in the journal.
        ours = [number for granted_in, number in map(grant_order, adopted._leases.values()) if granted_in == epoch]
        self._granted = max([self._granted, *ours])
        self._leases, self._tenants = adopted._leases, adopted._tenants
        return tuple(self._leases.values())

    def devices(self) -> tuple[Device, ...]:
        return tuple(self._devices.values())

    def device(self, device_id: str) -> Device:
        """Raises NotFound when there is none of that id."""
        if device_id not in self._devices:
            raise NotFound(f"no device {device_id!r:.80}; {self.book()}")
        return self._devices[device_id]

    def lease(self, lease_id: str) -> Lease:
        """Raises NotFound when there is none of that id."""
        if lease_id not in self._leases:
            raise NotFound(f"no lease {lease_id!r:.80}; {self.book()}")
        return self._leases[lease_id]

    def leases(self, device: str | None = None, workload: str | None = None) -> tuple[Lease, ...]:
        """Oldest grant first; of one device, one workload, or both. Raises NotFound for an unknown device."""
        if device is None:
            held = list(self._leases.values())
        else:
            held = sorted((self._leases[each] for each in self._tenants[self.device(device).id]), key=grant_order)
        return tuple(lease for lease in held if workload is None or lease.workload == workload)

    def free(self, device_id: str) -> tuple[int, int]:
        """What is left of a device: (milli, bytes). Raises NotFound for an unknown device."""
        return self._free(self.device(device_id))

    def fits(self, device_id: str, milli: int, memory_bytes: int) -> bool:
        """Whether ``grant`` of these amounts would succeed; raises NotFound for an unknown device."""
        free_milli, free_bytes = self.free(device_id)
        return amount_fault(milli, memory_bytes) is None and milli <= free_milli and memory_bytes <= free_bytes

    def book(self, device_id: str | None = None) -> str:
        """The book in a line, of one device or of all; at most MOST_NAMED devices, and leases on each, by name.

        Raises NotFound for an unknown device.
        """
        if device_id is not None:
            return f"book of epoch {self._epoch}: {device_line(self.device(device_id), self.leases(device_id))}"
        lines = (device_line(device, self.leases(device.id)) for device in self._devices.values())
        return f"book of epoch {self._epoch}: {listed(lines, len(self._devices), '; ') or 'no devices'}"

    def check_integrity(self) -> None:
        """Recount everything from the leases alone; AssertionError, with the book, on any contradiction."""
        totals = {device_id: [0, 0] for device_id in self._devices}
        for key, lease in self._leases.items():
            assert key == lease.id and lease_fault(lease) is None, f"{lease} is malformed or under id {key}; {self!r}"
            assert lease.device in totals, f"{lease} is on the unknown device {lease.device!r}; {self!r}"
            assert lease.epoch <= self._epoch, f"{lease} is of epoch {lease.epoch}, to come; {self!r}"
            assert grant_order(lease) <= (self._epoch, self._granted), f"{lease} was never granted; {self!r}"
            totals[lease.device][0] += lease.milli
            totals[lease.device][1] += lease.memory_bytes
        for device_id, (milli, memory_bytes) in totals.items():
            assert milli <= CAPACITY_MILLI, f"{device_id} is over-committed: {milli} milli; {self!r}"
            assert memory_bytes <= self._devices[device_id].memory_bytes, f"{device_id}: {memory_bytes} bytes; {self!r}"
        listed = sorted((each, device_id) for device_id, ids in self._tenants.items() for each in ids)
        held = sorted((lease.id, lease.device) for lease in self._leases.values())
        assert listed == held and set(self._tenants) == set(self._devices), f"leaked or listed twice; {self!r}"

    def __repr__(self) -> str:
        held = listed((f"{lease} on {lease.device}" for lease in self._leases.values()), len(self._leases), ", ")
        return f"Ledger(epoch {self._epoch}, devices {list(self._devices)}, leases {held})"

    def to_json(self) -> bytes:
        """The whole book as one JSON object with a checksum."""
        return encode(self._epoch, self._granted, self.devices(), self.leases())

    @classmethod
    def from_json(cls, content: bytes, source: str = "ledger journal") -> Ledger:
        """The book that ``to_json`` wrote, in the same epoch; whoever loads it to change it fences first.

        Raises:
            ArtifactError: the journal is damaged; names ``source``, what is wrong and the remedy.
        """
        record = decode(content, source)
        try:
            ledger = cls(record.devices)
            ledger._epoch, ledger._granted = record.epoch, record.granted
            ledger._load(record.leases)
            ledger.check_integrity()
        except (RecpoolError, AssertionError) as error:
            raise damaged(source, str(error.args[0])) from error
        return ledger

    # Steps of a change: the checks come first, then what cannot fail

    def _check_epoch(self, epoch: int, device_id: str | None = None) -> None:
        if not is_whole(epoch) or epoch != self._epoch:
            state = "fenced off" if is_whole(epoch) and epoch < self._epoch else "not one that was started"
            raise Conflict(f"epoch {epoch!r:.40} is {state}, the newest is {self._epoch}; {self._about(device_id)}")

    def _change(self, lease_id: str, epoch: int, **changed: Any) -> Lease:
        self._check_epoch(epoch, self._device_of(lease_id))
        lease = replace(self.lease(lease_id), epoch=self._epoch, **changed)
        self._enter(lease)
        return lease

    def _enter(self, lease: Lease) -> None:
        """Check a lease and put it into the book, in place of the one of the same id if there is one."""
        fault = lease_fault(lease)
        if fault:
            raise InvalidRequest(f"{fault[1]}; {self._about(lease.device)}", fault[0])
        self._check_room(lease, self.device(lease.device))
        if lease.id in self._leases:
            del self._tenants[self._leases[lease.id].device][lease.id]
        self._leases[lease.id] = lease
        self._tenants[lease.device][lease.id] = None

    def _check_room(self, lease: Lease, device: Device) -> None:
        if lease.memory_bytes > device.memory_bytes:
            why = f"memory_bytes {lease.memory_bytes} is above the {device.memory_bytes} of {device.id}"
            raise InvalidRequest(f"{why}; {self.book(device.id)}", "memory_bytes")
        free_milli, free_bytes = self._free(device, without=lease.id)
        if lease.milli > free_milli or lease.memory_bytes > free_bytes:
            why = f"{lease} does not fit on {device.id}: {free_milli} milli and {free_bytes} bytes are free for it"
            raise Conflict(f"{why}; {self.book(device.id)}")

    def _load(self, leases: Iterable[Lease], epoch: int | None = None) -> None:
        """Enter leases in an epoch of ours or their own; on an error, some of them are entered."""
        for lease in in_grant_order(leases, self._epoch):
            self._enter(lease if epoch is None else replace(lease, epoch=epoch))

    def _install(self, device: Device) -> None:
        if device.id in self._devices:
            raise Conflict(f"device {device.id!r} is in the pool already; {self.book(device.id)}")
        self._devices[device.id] = device
        self._tenants[device.id] = {}

    def _drop(self, lease: Lease) -> None:
        del self._leases[lease.id], self._tenants[lease.device][lease.id]

    def _free(self, device: Device, without: str | None = None) -> tuple[int, int]:
        held = [self._leases[each] for each in self._tenants[device.id] if each != without]
        milli = CAPACITY_MILLI - sum(lease.milli for lease in held)
        return milli, device.memory_bytes - sum(lease.memory_bytes for lease in held)

    def _device_of(self, lease_id: str) -> str | None:
        lease = self._leases.get(lease_id)
        return lease.device if lease else None

    def _about(self, device_id: str | None) -> str:
        """The book of a device, or of all where that one is unknown."""
        return self.book(device_id if isinstance(device_id, str) and device_id in self._devices else None)
