"""Taking turns among members that share a device by weight."""

from __future__ import annotations

import time
from collections.abc import Sequence
from types import TracebackType

from pool.gate.layout import (
    BUSY_SINCE,
    COMMAND,
    METERED,
    RUN,
    SEEN,
    STEP,
    STEPS,
    TURN_END,
    slot_base,
)
from pool.gate.locks import LockFile
from pool.gate.meters import Meter
from pool.gate.table import SlotTable
from pool.gate.turns import Contender, next_turn

TURN_BYTE = 1 << 42
"""Byte whose lock is the turn; it does not exist."""
HOLD_NS = 3_000_000
"""How long the free device is kept for the member whose turn it is; one that waits looks every millisecond."""


class TurnLine:
    """Where one member stands in line for the device. Not for two threads at once.

    Attributes:
        turn: the one it has; None: another's, or nobody's.
    """

    def __init__(self, table: SlotTable, slot: int, lock: LockFile, meter: Meter):
        self.turn: Turn | None = None
        self._table, self._slot, self._base = table, slot, slot_base(slot)
        self._lock, self._meter = lock, meter
        self._free_since_ns = 0
        self._given_up: dict[int, int] = {}

    def holder_s(self, now_ns: int) -> float:
        """Seconds until whoever has the device will end, if its step takes as long as its last; 0: no telling."""
        words, base = self._table.words, self._table.holder()
        if base is None:
            return 0.0
        return max(0, words[base + BUSY_SINCE] + words[base + STEP] - now_ns) / 1e9

    def stand_back(self) -> None:
        """The device is not free for any member."""
        self._free_since_ns = 0

    def try_turn(self, now_ns: int) -> Turn | None:
        """Take the device if it is free and this member's; it must be marked as waiting."""
        contenders = self._table.contenders(now_ns, self._given_up)
        choice = next_turn(contenders)
        if choice.slot != self._slot:
            self._watch(choice.awaited if choice.slot is None else choice.slot, contenders, now_ns)
        elif self._lock.try_lock(TURN_BYTE):
            # Others may have had turns since: what was chosen before is chosen again, now that nobody else can.
            begun_ns = self._begin(now_ns)
            if begun_ns is not None:
                self.turn = Turn(self, begun_ns, self._meter)
                return self.turn
            self._lock.unlock(TURN_BYTE)
        return None

    def end(self, turn: Turn, metered_ns: int, steps: int) -> None:
        """Give the device back; nothing happens where the turn has ended before, or its slot was left within it."""
        if self.turn is not turn:
            return
        words, base = self._table.words, self._base
        now_ns = time.monotonic_ns()
        words[base + METERED] += metered_ns
        self._table.charge(base, metered_ns)
        words[base + STEPS] += steps
        words[base + STEP] = now_ns - words[base + BUSY_SINCE]
        words[base + SEEN] = words[base + TURN_END] = now_ns
        words[base + BUSY_SINCE] = 0
        self._lock.unlock(TURN_BYTE)
        self.turn = None

    def must_yield(self) -> bool:
        """Whether guaranteed work wants the device, or the controller wants this member to stop."""
        return self._table.words[self._base + COMMAND] != RUN or self._table.is_taken(time.monotonic_ns())

    def _watch(self, awaited: int | None, contenders: Sequence[Contender], now_ns: int) -> None:
        """Give up on whoever does not take the free device: it stopped, or has no work; until it is seen again."""
        if awaited is None or self._table.holder() is not None:
            self._free_since_ns = 0
            return
        last_end_ns = max(each.turn_end_ns for each in contenders)
        self._free_since_ns = max(self._free_since_ns or now_ns, last_end_ns)
        if now_ns - self._free_since_ns > HOLD_NS:
            self._given_up[awaited] = self._table.words[slot_base(awaited) + SEEN]
            self._free_since_ns = 0

    def _begin(self, now_ns: int) -> int | None:
        choice = next_turn(self._table.contenders(now_ns, self._given_up))
        if choice.slot != self._slot:
            return None
        words, base = self._table.words, self._base
        begun_ns = time.monotonic_ns()
        words[base + BUSY_SINCE] = begun_ns
        if self._table.is_taken(begun_ns):
            words[base + BUSY_SINCE] = 0
            return None
        for slot, credit_ns in choice.credits_ns.items():
            self._table.set_credit(slot_base(slot), credit_ns)
        return begun_ns


class Turn:
    """The device, for one step: ``with turn: step()``. Held from the moment `GateSlot.wait_turn` returns it.

    Attributes:
        begun_ns: when it began, in monotonic nanoseconds; no guaranteed work was under way then.
        metered_ns: device time of the step, once it has ended.
    """

    def __init__(self, line: TurnLine, begun_ns: int, meter: Meter):
        self.begun_ns, self.metered_ns = begun_ns, 0
        self._line, self._meter = line, meter
        self._mark = None

    @property
    def must_yield(self) -> bool:
        """Whether guaranteed work wants the device, or the controller wants this member to stop: end the step early."""
        return self._line.must_yield()

    def release(self) -> None:
        """End a turn that was not used; one that has ended stays so."""
        self._line.end(self, 0, 0)

    def __enter__(self) -> Turn:
        try:
            self._mark = self._meter.start()
        except BaseException:
            self.release()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None):
        try:
            self.metered_ns = self._meter.stop(self._mark)
        finally:
            self._line.end(self, self.metered_ns, 1)
