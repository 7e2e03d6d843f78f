"""The slots of a mapped segment as the members of a device see them."""

from __future__ import annotations

from collections.abc import Mapping

from pool.gate.layout import (
    BUSY_SINCE,
    COMMAND,
    CREDIT,
    GUARANTEED,
    H_MEMBERS,
    JOINED,
    PAID_WEIGHT,
    PRIORITY,
    RUN,
    SEEN,
    SLOTS,
    STATE,
    TURN_END,
    WAITING_SINCE,
    WEIGHT,
    slot_base,
)
from pool.gate.turns import Contender, carried, charge

RETURN_NS = 50_000_000
"""How soon after its turn a member comes for the next at the latest, if it works without pause. Much longer than
that takes: a best-effort process may not get its core back before others have had a turn."""
ANNOUNCED_NS = 100_000_000
"""An announced request that does not arrive for so long holds up nobody."""


class SlotTable:
    """Reads the words of all slots; remembers who is a member until membership changes.

    Attributes:
        words: the segment, [HEADER_WORDS + SLOTS * SLOT_WORDS] int64.
    """

    def __init__(self, words: memoryview):
        self.words = words
        self._members = -1
        self._guaranteed: tuple[int, ...] = ()
        self._sharing: tuple[tuple[int, int], ...] = ()

    @property
    def guaranteed(self) -> tuple[int, ...]:
        """First words of the guaranteed members' slots."""
        self._refresh()
        return self._guaranteed

    @property
    def sharing(self) -> tuple[tuple[int, int], ...]:
        """Slot and its first word of each member that shares by weight, burstable before best-effort."""
        self._refresh()
        return self._sharing

    def is_taken(self, now_ns: int) -> bool:
        """Whether guaranteed work computes, or has announced that it is about to."""
        words = self.words
        for base in self.guaranteed:
            if words[base + BUSY_SINCE]:
                return True
            waiting = words[base + WAITING_SINCE]
            if waiting and now_ns - waiting < ANNOUNCED_NS:
                return True
        return False

    def holder(self) -> int | None:
        """First word of the slot that has the turn, as it says itself; it may be dead."""
        words = self.words
        return next((base for _, base in self.sharing if words[base + BUSY_SINCE]), None)

    def contenders(self, now_ns: int, given_up: Mapping[int, int]) -> list[Contender]:
        """All that share the device by weight, ready for `next_turn`.

        Args:
            given_up: slots whose holders do not come though they could, and the last sign of life of each.
        """
        return [
            self._contender(slot, base, now_ns, given_up.get(slot) == self.words[base + SEEN])
            for slot, base in self.sharing
        ]

    def set_credit(self, base: int, credit_ns: int) -> None:
        """Write a member's account; for whoever holds the turn lock."""
        self.words[base + CREDIT] = credit_ns
        self.words[base + PAID_WEIGHT] = self.words[base + WEIGHT]

    def charge(self, base: int, metered_ns: int) -> None:
        """Take what a turn used from a member's account; for whoever holds the turn lock."""
        words, weight = self.words, self.words[base + WEIGHT]
        credit = carried(weight, words[base + PAID_WEIGHT], words[base + CREDIT])
        self.set_credit(base, charge(weight, credit, metered_ns))

    def _contender(self, slot: int, base: int, now_ns: int, is_given_up: bool) -> Contender:
        words = self.words
        weight, end = words[base + WEIGHT], words[base + TURN_END]
        credit = carried(weight, words[base + PAID_WEIGHT], words[base + CREDIT])
        waits = words[base + WAITING_SINCE] != 0
        comes = not is_given_up and words[base + COMMAND] == RUN
        wants, returns = comes and waits, comes and not waits and now_ns - end < RETURN_NS
        return Contender(slot, weight, credit, wants, returns, end)

    def _refresh(self) -> None:
        words = self.words
        members = words[H_MEMBERS]
        if members == self._members:
            return
        bases = [(slot, slot_base(slot)) for slot in range(SLOTS)]
        joined = [(slot, base) for slot, base in bases if words[base + STATE] == JOINED]
        self._guaranteed = tuple(base for _, base in joined if words[base + PRIORITY] == GUARANTEED)
        sharing = [each for each in joined if words[each[1] + PRIORITY] != GUARANTEED]
        self._sharing = tuple(sorted(sharing, key=lambda each: (words[each[1] + PRIORITY], each[0])))
        self._members = members
