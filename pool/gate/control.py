"""The controller's side of the gate: weights and commands, under its fencing epoch."""

from __future__ import annotations

from collections.abc import Mapping

from configs.errors import Conflict, InvalidRequest, NotFound
from pool.device import CAPACITY_MILLI
from pool.gate.layout import (
    COMMAND,
    COMMANDS,
    H_EPOCH,
    JOINED,
    NAME,
    SLOTS,
    STATE,
    WEIGHT,
    Command,
    read_name,
    slot_base,
)
from pool.gate.segment import GateSegment


class GateControl:
    """One controller's authority over a device, until a newer epoch takes it.

    Every write says which epoch it is of, and one of an older epoch than the segment has seen is refused, so
    that of two controllers only the newer one is heard.
    """

    def __init__(self, segment: GateSegment, epoch: int):
        """Take over.

        Raises:
            Conflict: a newer controller has taken over already.
        """
        self._segment, self._epoch = segment, epoch
        with segment.membership() as words:
            if epoch < words[H_EPOCH]:
                raise self._stale(words[H_EPOCH])
            words[H_EPOCH] = epoch

    def set_weights(self, weights_milli: Mapping[str, int]) -> None:
        """Cut the device anew, from the next turn on; workloads not named keep their weights.

        Weights count against each other, whatever their sum. That of a workload with several slots is split over
        them. All or nothing is written.

        Raises:
            Conflict: a newer controller has taken over.
            InvalidRequest: a weight is outside 0 to 1000.
            NotFound: a workload has no slot here.
        """
        for workload, weight in weights_milli.items():
            if not 0 <= weight <= CAPACITY_MILLI:
                raise InvalidRequest(f"weight of {workload!r}: {weight} is outside 0 to {CAPACITY_MILLI}", workload)
        with self._segment.membership() as words:
            members = self._members(words, weights_milli)
            for workload, weight in weights_milli.items():
                bases = members[workload]
                for at, base in enumerate(bases):
                    words[base + WEIGHT] = weight * (at + 1) // len(bases) - weight * at // len(bases)

    def command(self, workload: str, command: Command) -> None:
        """Tell every slot of a workload to run, pause, or yield; it sees this before its next turn.

        Raises:
            Conflict: a newer controller has taken over.
            NotFound: the workload has no slot here.
        """
        with self._segment.membership() as words:
            for base in self._members(words, {workload: 0})[workload]:
                words[base + COMMAND] = COMMANDS.index(command)

    def _members(self, words: memoryview, wanted: Mapping[str, int]) -> dict[str, list[int]]:
        """First words of the slots of each wanted workload, once it is certain that this controller may write."""
        if words[H_EPOCH] != self._epoch:
            raise self._stale(words[H_EPOCH])
        members: dict[str, list[int]] = {}
        for base in (slot_base(slot) for slot in range(SLOTS)):
            if words[base + STATE] == JOINED:
                members.setdefault(read_name(words, base + NAME), []).append(base)
        if missing := sorted(wanted.keys() - members.keys()):
            here = ", ".join(sorted(members)) or "nobody"
            raise NotFound(f"device {self._segment.device_id!r}: {', '.join(missing)} has no slot; here: {here}")
        return members

    def _stale(self, newest: int) -> Conflict:
        device = self._segment.device_id
        return Conflict(f"device {device!r}: epoch {self._epoch} is over, a controller of epoch {newest} has taken it")
