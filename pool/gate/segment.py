"""The segment of one device's gate: a small file in shared memory that separate processes map.

Whoever computes on the device joins it and gets a slot. Each slot is locked by its holder for as long as the
holder lives, so that a dead one is known at once, whatever its process id is by now, and swept by whoever
comes by. A machine's processes must see one `/proc` and one folder of gates, as those of one Ray node do.
"""

from __future__ import annotations

import mmap
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import mkstemp

from pydantic import TypeAdapter, ValidationError

from configs.errors import ArtifactError, Conflict, InvalidRequest, NotFound, Unavailable
from pool.device import CAPACITY_MILLI, Device
from pool.gate import layout
from pool.gate.layout import SLOT_WORDS, SLOTS, slot_base
from pool.gate.locks import LockFile
from pool.gate.meters import Meter, ThreadMeter
from pool.gate.readings import GateReading, read_slots
from pool.gate.slot import GateSlot
from pool.gate.table import SlotTable
from pool.workload import RANK, WorkloadName, WorkloadPriority

MEMBERSHIP_BYTE = 1 << 40
SLOT_BYTE = 1 << 41
"""Bytes whose locks guard membership, and (plus the slot's number) a slot; none of them exists."""
MEMBERSHIP_TIMEOUT_S = 5.0
"""Changes of membership take microseconds; whoever holds the lock for longer is stopped or broken."""

_workload_name = TypeAdapter(WorkloadName)


class GateSegment:
    """A process's view of one device's gate. Threads may share it; a slot joined through it has its own locks.

    Attributes:
        lanes: seconds of device time there are in a second: cores of a CPU device, 1 of an accelerator.
    """

    def __init__(self, path: Path, device_id: str):
        """Map an existing segment; see `open`."""
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            raise NotFound(f"{path}: device {device_id!r} has no gate; the controller of the pool makes it") from None
        except OSError as error:
            raise ArtifactError(f"{path}: not the segment of a gate: {error.strerror}") from None
        try:
            layout.check_size(os.fstat(descriptor).st_size, path)
            self._map = mmap.mmap(descriptor, layout.SIZE_BYTES)
            self._file = LockFile(descriptor)
        finally:
            os.close(descriptor)
        self.path, self.device_id = path, device_id
        self._words = memoryview(self._map).cast("q")
        self._mutex = threading.Lock()
        try:
            layout.check_header(self._words, path, device_id)
        except BaseException:
            self.close()
            raise
        self.lanes: int = self._words[layout.H_LANES]

    @classmethod
    def create(cls, folder: Path, device: Device) -> GateSegment:
        """Make the device's segment, or open the one that is there: its members stay, dead ones are swept.

        Raises:
            ArtifactError: what is there is no segment of this version and device.
            InvalidRequest: the device's id cannot name a file.
        """
        path = layout.segment_path(folder, device.id)
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            _publish(layout.new_content(device.id, max(1, len(device.cores))), path)
        segment = cls(path, device.id)
        segment.sweep()
        return segment

    @classmethod
    def open(cls, folder: Path, device_id: str) -> GateSegment:
        """Map the segment of a device.

        Raises:
            ArtifactError: the file is no segment of this version and device.
            NotFound: there is none.
        """
        return cls(layout.segment_path(folder, device_id), device_id)

    def join(
        self, workload: str, priority: WorkloadPriority, weight_milli: int, meter: Meter | None = None
    ) -> GateSlot:
        """Take a free slot; the workload computes on the device through it.

        Args:
            weight_milli: its share among those that do not go first; 0: of what the others leave.
            meter: of the device time its work takes; absent: the calling thread's CPU time.
        Raises:
            Conflict: all slots are taken; the message says by whom.
            InvalidRequest: name or weight out of range.
        """
        _check(workload, weight_milli)
        with self.membership():
            self._sweep_locked()
            for slot in range(SLOTS):
                held = self._claim(slot)
                if held is not None:
                    self._enrol(slot, workload, RANK[priority], weight_milli)
                    return GateSlot(
                        SlotTable(self._words), slot, held, meter or ThreadMeter(), self.sweep, self._release
                    )
        names = sorted({view.workload for view in self.read().slots})
        raise Conflict(f"device {self.device_id!r}: all {SLOTS} slots are taken, by {', '.join(names)}")

    def read(self) -> GateReading:
        """What every member has, does and has used; swept ones are gone from it.

        Raises:
            ArtifactError: something else wrote into the segment.
        """
        try:
            return GateReading(self.device_id, time.monotonic_ns(), self.lanes, read_slots(self._words))
        except IndexError:
            raise ArtifactError(f"{self.path}: damaged: a slot has a priority or command that does not exist") from None

    def sweep(self) -> tuple[str, ...]:
        """Free the slots of dead holders, unless someone does so right now; returns their workloads."""
        with self._mutex:
            if not self._file.try_lock(MEMBERSHIP_BYTE):
                return ()
            try:
                return self._sweep_locked()
            finally:
                self._file.unlock(MEMBERSHIP_BYTE)

    @contextmanager
    def membership(self) -> Iterator[memoryview]:
        """The words of the segment, while nobody else may change who is a member or what a controller says.

        Raises:
            Unavailable: another process keeps it locked.
        """
        with self._mutex:
            if not self._file.lock(MEMBERSHIP_BYTE, MEMBERSHIP_TIMEOUT_S):
                raise Unavailable(f"{self.path}: locked by another process for over {MEMBERSHIP_TIMEOUT_S:g} s")
            try:
                yield self._words
            finally:
                self._file.unlock(MEMBERSHIP_BYTE)

    def close(self) -> None:
        """Let go of the mapping, once every slot joined here was left. The segment stays for others."""
        self._words.release()
        self._map.close()
        self._file.close()

    def unlink(self) -> None:
        """Remove the device's segment. Members go on in the old one; no new ones find them."""
        self.path.unlink(missing_ok=True)

    def _claim(self, slot: int) -> LockFile | None:
        """The lock of a free slot, held."""
        if self._words[slot_base(slot) + layout.STATE] != layout.FREE:
            return None
        held = self._file.another()
        if held.try_lock(SLOT_BYTE + slot):
            return held
        held.close()
        return None

    def _enrol(self, slot: int, workload: str, priority: int, weight_milli: int) -> None:
        words, base = self._words, slot_base(slot)
        generation = words[base + layout.GENERATION] + 1
        _clear(words, base)
        words[base + layout.GENERATION] = generation
        words[base + layout.PID], words[base + layout.PID_START] = os.getpid(), _start_ticks()
        words[base + layout.PRIORITY], words[base + layout.WEIGHT] = priority, weight_milli
        words[base + layout.SEEN] = time.monotonic_ns()
        layout.write_name(words, base + layout.NAME, workload)
        words[base + layout.STATE] = layout.JOINED  # last: who dies before this leaves a free slot
        words[layout.H_MEMBERS] += 1

    def _release(self, slot: int) -> None:
        with self.membership():
            self._vacate(slot)

    def _vacate(self, slot: int) -> None:
        base = slot_base(slot)
        # In this order: who dies within leaves a slot that holds up nobody, in memories of members too.
        self._words[base + layout.BUSY_SINCE] = self._words[base + layout.WAITING_SINCE] = 0
        self._words[base + layout.STATE] = layout.FREE
        self._words[layout.H_MEMBERS] += 1

    def _sweep_locked(self) -> tuple[str, ...]:
        words, swept = self._words, []
        for slot in range(SLOTS):
            base = slot_base(slot)
            if words[base + layout.STATE] == layout.JOINED and not self._file.is_held_elsewhere(SLOT_BYTE + slot):
                swept.append(layout.read_name(words, base + layout.NAME))
                self._vacate(slot)
        return tuple(swept)


def _check(workload: str, weight_milli: int) -> None:
    try:
        _workload_name.validate_python(workload)
    except ValidationError as error:
        raise InvalidRequest(f"workload {workload!r}: {error.errors()[0]['msg']}", "workload") from None
    if not 0 <= weight_milli <= CAPACITY_MILLI:
        raise InvalidRequest(f"weight_milli: {weight_milli} is outside 0 to {CAPACITY_MILLI}", "weight_milli")


def _clear(words: memoryview, base: int) -> None:
    for word in range(base, base + SLOT_WORDS):
        words[word] = 0


def _start_ticks() -> int:
    """When this process started, in clock ticks since boot: with its id it names a process for good (proc(5))."""
    stat = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace")
    return int(stat.rsplit(")", 1)[1].split()[19])


def _publish(content: bytes, path: Path) -> None:
    """Let the file appear whole, unless another process was faster."""
    descriptor, draft = mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
        with suppress(FileExistsError):
            os.link(draft, path)
    finally:
        Path(draft).unlink()
