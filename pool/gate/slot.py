"""A member's side of the gate: guaranteed work marks itself busy, all other work waits for its turn.

    guaranteed                         burstable, best effort
    with slot.busy():                  turn = slot.wait_turn(timeout_s=1.0)
        infer(batch)                   if turn:
                                           with turn:
                                               step(rows)

Nothing a guaranteed member does waits for anyone: it stores a word and computes. The others look at these words
before each step, and keep out of each other's way by one lock, which dies with its holder.
"""

from __future__ import annotations

import os
import time
import weakref
from collections.abc import Callable
from types import TracebackType

from configs.errors import Conflict
from pool.gate.layout import (
    BUSY_SINCE,
    COMMAND,
    COMMANDS,
    GUARANTEED,
    METERED,
    PREEMPTIONS,
    PRIORITY,
    RUN,
    SEEN,
    SLOT_WORDS,
    STEPS,
    WAITING_SINCE,
    WEIGHT,
    Command,
    slot_base,
)
from pool.gate.locks import LockFile
from pool.gate.meters import Meter
from pool.gate.table import SlotTable
from pool.gate.turn import Turn, TurnLine

NAP_S, LONGEST_NAP_S = 50e-6, 1e-3
NAP_GROWTH = 1.5
SWEEP_NS = 50_000_000
"""How often a member that waits looks for dead ones."""


class GateSlot:
    """One membership of a device, made by `GateSegment.join` and used by the process that joined.

    `busy` may be entered by several threads at once, `wait_turn` by one.
    """

    def __init__(
        self,
        table: SlotTable,
        slot: int,
        lock: LockFile,
        meter: Meter,
        sweep: Callable[[], object],
        release: Callable[[int], None],
    ):
        """Take what the segment prepared.

        Args:
            lock: holds the slot's lock, and takes the turn's.
            sweep: frees the slots of dead holders.
            release: frees this one.
        """
        self.slot = slot
        self._table = table
        self._own = table.words[slot_base(slot) : slot_base(slot) + SLOT_WORDS]
        self._lock, self._meter = lock, meter
        self._line = TurnLine(table, slot, lock, meter)
        self._sweep, self._release = sweep, release
        self._goes_first = self._own[PRIORITY] == GUARANTEED
        self._inside: list[None] = []
        self._gone = False
        _slots.add(self)

    @property
    def command(self) -> Command:
        """What the controller wants of it."""
        return COMMANDS[self._own[COMMAND]]

    @property
    def weight_milli(self) -> int:
        """Its live share among those that share the device."""
        return self._own[WEIGHT]

    @property
    def metered_ns(self) -> int:
        """Device time it took since it joined."""
        return self._own[METERED]

    def announce(self) -> None:
        """A request has arrived for this guaranteed member: nobody begins a step before it was served.

        Forgotten when `busy` ends, or after 100 ms if no work comes of it.
        """
        self._refuse_unless(self._goes_first)
        self._own[WAITING_SINCE] = time.monotonic_ns()

    def busy(self) -> Busy:
        """``with slot.busy():`` takes the device at once and meters the work inside; for guaranteed members.

        Raises:
            Conflict: the member is not guaranteed, was left, or belongs to the parent process.
        """
        if self._gone or not self._goes_first:
            self._refuse_unless(self._goes_first)
        return Busy(self)

    def wait_turn(self, timeout_s: float | None = None) -> Turn | None:
        """Block until the device is free and it is this member's turn; None: not in time, or it is to yield.

        While paused it waits on. `command` tells the one None from the other.

        Raises:
            Conflict: the member is guaranteed, was left, belongs to the parent process, or has a turn already.
        """
        self._refuse_unless(not self._goes_first)
        if self._line.turn is not None:
            raise Conflict(f"slot {self.slot}: its turn has not ended; use it as `with turn:`, or release it")
        deadline_ns = None if timeout_s is None else time.monotonic_ns() + int(timeout_s * 1e9)
        try:
            return self._wait(deadline_ns)
        finally:
            self._own[WAITING_SINCE] = 0

    def leave(self) -> None:
        """Give the slot back, and the device if it is held. Leaving twice does nothing."""
        if self._gone:
            return
        if self._line.turn is not None:
            self._line.turn.release()
        self._gone = True
        self._release(self.slot)
        self._lock.close()
        self._own.release()

    def __enter__(self) -> GateSlot:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        self.leave()

    def _wait(self, deadline_ns: int | None) -> Turn | None:
        swept_ns, nap_s = time.monotonic_ns(), NAP_S
        preempted = False
        while self.command != "yield":
            now_ns = time.monotonic_ns()
            self._own[SEEN] = now_ns
            taken, turn = self._try_turn(now_ns)
            if turn is not None:
                return turn
            if taken and not preempted:
                preempted = True
                self._own[PREEMPTIONS] += 1
            if deadline_ns is not None and now_ns >= deadline_ns:
                return None
            if now_ns - swept_ns >= SWEEP_NS:
                self._sweep()
                swept_ns = now_ns
            holder_s = self._line.holder_s(now_ns)
            nap_s = NAP_S if holder_s else min(LONGEST_NAP_S, nap_s * NAP_GROWTH)
            time.sleep(min(LONGEST_NAP_S, max(nap_s, holder_s)))
        return None

    def _try_turn(self, now_ns: int) -> tuple[bool, Turn | None]:
        """Whether guaranteed work has the device; the turn, if it is this member's."""
        own = self._own
        if own[COMMAND] != RUN:
            own[WAITING_SINCE] = 0
            self._line.stand_back()
            return False, None
        if not own[WAITING_SINCE]:
            own[WAITING_SINCE] = now_ns
        if self._table.is_taken(now_ns):
            self._line.stand_back()
            return True, None
        return False, self._line.try_turn(now_ns)

    def _refuse_unless(self, priority_fits: bool) -> None:
        if self._gone:
            raise Conflict(f"slot {self.slot}: left, or joined by the parent process; join the segment again")
        if not priority_fits:
            raise Conflict(f"slot {self.slot}: `busy` and `announce` are for guaranteed members, turns for all others")

    def _disown(self) -> None:
        """In a forked child: the slot stays the parent's."""
        self._gone = True
        self._line.turn = None


class Busy:
    """The device while guaranteed work computes; see `GateSlot.busy`."""

    __slots__ = ("_mark", "_slot")

    def __init__(self, slot: GateSlot):
        self._slot = slot

    def __enter__(self) -> None:
        slot = self._slot
        slot._inside.append(None)
        slot._own[BUSY_SINCE] = time.monotonic_ns()
        try:
            self._mark = slot._meter.start()
        except BaseException:
            self._done(0)
            raise

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        used_ns = 0
        try:
            used_ns = self._slot._meter.stop(self._mark)
        finally:
            self._done(used_ns)

    def _done(self, used_ns: int) -> None:
        slot = self._slot
        own, inside = slot._own, slot._inside
        inside.pop()
        if slot._gone:
            return
        # No call is within a line of these, so that CPython changes to no other thread within one.
        own[METERED] += used_ns
        own[STEPS] += 1
        if not inside:
            own[BUSY_SINCE] = own[WAITING_SINCE] = 0
            if inside:  # another thread came in between
                own[BUSY_SINCE] = time.monotonic_ns()


_slots: weakref.WeakSet[GateSlot] = weakref.WeakSet()


def _disown_all() -> None:
    for slot in list(_slots):
        slot._disown()


os.register_at_fork(after_in_child=_disown_all)
