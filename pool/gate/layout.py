"""How a gate's segment is laid out: a header and fixed slots, in aligned 8-byte words.

    header   32 words   magic, version, sizes, lanes, controller's epoch, count of membership changes, device id
    slot     40 words   five cache lines, one for each kind of writer, so that no word has two writers at once

        words  0-7    who holds the slot        written under the membership lock
        words  8-15   what the holder does now  written by the holder alone
        words 16-23   what the controller says  written under the membership lock
        words 24-31   the account of turns      written by whoever holds the turn lock
        words 32-39   name of the workload      written under the membership lock

A word is signed, native and aligned, so that a load or store of it is one instruction: nobody reads half of one.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal

from configs.errors import ArtifactError, InvalidRequest
from pool.workload import RANK, WorkloadPriority

MAGIC = int.from_bytes(b"RPGATE\0\0", "little")
VERSION = 1
SLOTS = 64
WORD_BYTES = 8
HEADER_WORDS, SLOT_WORDS = 32, 40
SIZE_BYTES = (HEADER_WORDS + SLOTS * SLOT_WORDS) * WORD_BYTES
NAME_WORDS = 8
NAME_BYTES = NAME_WORDS * WORD_BYTES
"""Of a device's or a workload's name, ended by at least one zero."""

H_MAGIC, H_VERSION, H_SLOTS, H_SLOT_WORDS, H_LANES, H_EPOCH, H_MEMBERS, H_DEVICE = 0, 1, 2, 3, 4, 5, 6, 8

STATE, GENERATION, PID, PID_START, PRIORITY = 0, 1, 2, 3, 4
BUSY_SINCE, WAITING_SINCE, METERED, SEEN, STEPS, PREEMPTIONS, TURN_END, STEP = 8, 9, 10, 11, 12, 13, 14, 15
WEIGHT, COMMAND = 16, 17
CREDIT, PAID_WEIGHT = 24, 25
NAME = 32
"""Words of a slot. Times are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share; 0: not so.
SEEN: last sign of life. STEP: how long its last turn took. CREDIT: device time it may take in this round, as
paid out under PAID_WEIGHT."""

FREE, JOINED = 0, 1

Command = Literal["run", "pause", "yield"]
COMMANDS: tuple[Command, ...] = ("run", "pause", "yield")
"""``pause``: takes no turn until told to run. ``yield``: is to keep its state and leave the device."""
RUN, PAUSE, YIELD = range(3)

PRIORITIES: tuple[WorkloadPriority, ...] = tuple(sorted(RANK, key=lambda priority: RANK[priority]))
GUARANTEED = RANK["guaranteed"]

_DEVICE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_REMEDY = "remove it while no process uses the device, and the controller makes it anew"


def segment_path(folder: Path, device_id: str) -> Path:
    """Where a device's segment lies in the folder of all gates of this machine.

    Raises:
        InvalidRequest: the id cannot name a file.
    """
    if not _DEVICE_ID.fullmatch(device_id):
        raise InvalidRequest(
            f"device id {device_id!r}: use 1 to 63 letters, digits, dots, dashes and underscores", "device"
        )
    return folder / f"{device_id}.gate"


def slot_base(slot: int) -> int:
    """First word of a slot."""
    return HEADER_WORDS + slot * SLOT_WORDS


def write_name(words: memoryview, at: int, name: str) -> None:
    padded = name.encode().ljust(NAME_BYTES, b"\0")
    assert len(padded) == NAME_BYTES and padded[-1] == 0, f"name {name!r} takes over {NAME_BYTES - 1} bytes"
    words[at : at + NAME_WORDS] = memoryview(padded).cast("q")


def read_name(words: memoryview, at: int) -> str:
    return words[at : at + NAME_WORDS].tobytes().split(b"\0", 1)[0].decode(errors="replace")


def new_content(device_id: str, lanes: int) -> bytes:
    """Bytes of a segment without members."""
    content = bytearray(SIZE_BYTES)
    words = memoryview(content).cast("q")
    words[H_VERSION], words[H_SLOTS], words[H_SLOT_WORDS], words[H_LANES] = VERSION, SLOTS, SLOT_WORDS, lanes
    words[H_MAGIC] = MAGIC
    write_name(words, H_DEVICE, device_id)
    words.release()
    return bytes(content)


def check_header(words: memoryview, path: Path, device_id: str) -> None:
    """Refuse a segment that this version did not write for this device.

    Raises:
        ArtifactError: naming the file, what is wrong with it, and the remedy.
    """
    if words[H_MAGIC] != MAGIC:
        raise ArtifactError(f"{path}: not the segment of a gate; {_REMEDY}")
    found = (words[H_VERSION], words[H_SLOTS], words[H_SLOT_WORDS])
    if found != (VERSION, SLOTS, SLOT_WORDS):
        wanted = f"version {VERSION}, {SLOTS} slots of {SLOT_WORDS} words"
        raise ArtifactError(
            f"{path}: version {found[0]}, {found[1]} slots of {found[2]} words, where {wanted} are wanted; {_REMEDY}"
        )
    if words[H_LANES] < 1:
        raise ArtifactError(f"{path}: lanes: {words[H_LANES]} is below 1; {_REMEDY}")
    if (owner := read_name(words, H_DEVICE)) != device_id:
        raise ArtifactError(f"{path}: made for device {owner!r}, not {device_id!r}; {_REMEDY}")


def check_size(size_bytes: int, path: Path) -> None:
    """Refuse a file that cannot be a segment, before it is mapped.

    Raises:
        ArtifactError: as for `check_header`.
    """
    if size_bytes != SIZE_BYTES:
        raise ArtifactError(f"{path}: {size_bytes} bytes, where a segment has {SIZE_BYTES}; {_REMEDY}")
