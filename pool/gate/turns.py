"""Whose turn it is: deficit round robin on metered device time.

In a round each member may take device time in proportion to its weight; what it takes is known only once it is
metered, so it may overdraw, and works the debt off in later rounds. Unlike in the textbook's ring, a turn goes to
the member with most of its round left, so that shares are even over a few turns already, and a round is paid out
to all members at once, when none that wants the device has credit. A member that does not want it keeps at most
`ROUNDS_KEPT` rounds of credit.

Source: M. Shreedhar and G. Varghese, "Efficient fair queueing using deficit round robin", SIGCOMM 1995; costs
known only afterwards as in its variant "surplus round robin" (H. Adiseshu, G. Parulkar, G. Varghese, SIGCOMM 1996).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from pool.device import CAPACITY_MILLI

ROUND_NS = 20_000_000
"""Device time paid out in a round for weights of 1000 together: four steps of the longest kind allowed."""
ROUNDS_KEPT = 2
LEAST_CHARGE_NS = 50_000
"""Of a turn: one that meters nothing must not be followed by another for ever."""


@dataclass(frozen=True)
class Contender:
    """A member of the device that shares it by weight.

    Attributes:
        credit_ns: device time left to it; below 0: a debt.
        wants: it waits for a turn.
        returns: it ended a turn just now and will most likely want the next.
        turn_end_ns: when its last turn ended; 0: it had none.
    """

    slot: int
    weight_milli: int
    credit_ns: int
    wants: bool
    returns: bool = False
    turn_end_ns: int = 0

    @property
    def round_ns(self) -> int:
        """What a round pays it."""
        return self.weight_milli * ROUND_NS // CAPACITY_MILLI

    @property
    def rounds_left(self) -> float:
        return self.credit_ns / self.round_ns


@dataclass(frozen=True)
class Choice:
    """Whose turn it is.

    Attributes:
        slot: the member's; None: nobody's now.
        credits_ns: by slot, to be written when the turn is taken.
        awaited: slot of a member that the device is kept for until it returns.
    """

    slot: int | None
    credits_ns: Mapping[int, int]
    awaited: int | None = None


def next_turn(contenders: Sequence[Contender]) -> Choice:
    """Choose among those that want the device; the earlier in the sequence wins a tie.

    One that `returns` counts as if it wanted the device: where it would be chosen, nobody is, or members with
    large weights would lose a turn, and their credit, in every gap between two of theirs. But where another has
    credit as well, that one goes first instead. A weight of 0 asks for what nobody with a weight uses.
    """
    weighted = [each for each in contenders if each.weight_milli > 0 and (each.wants or each.returns)]
    if not weighted:
        rest = min((each for each in contenders if each.wants), key=lambda each: each.turn_end_ns, default=None)
        return Choice(rest.slot if rest else None, {})
    ready = [each for each in weighted if each.credit_ns > 0]
    if ready:
        return _choose(ready, {})
    paid = _pay(contenders, min(_rounds_until_credit(each) for each in weighted))
    ready = [each for each in paid if each.credit_ns > 0 and (each.wants or each.returns)]
    return _choose(ready, {each.slot: each.credit_ns for each in paid})


def carried(weight_milli: int, paid_weight_milli: int, credit_ns: int) -> int:
    """Credit that was written under another weight, perhaps: a new cut starts without credit, but keeps debts."""
    if weight_milli != paid_weight_milli:
        return min(0, credit_ns) if weight_milli > 0 else 0
    return capped(weight_milli, credit_ns)


def charge(weight_milli: int, credit_ns: int, metered_ns: int) -> int:
    """Credit after a turn that took metered_ns. Without a weight nothing is charged, as nothing is ever paid."""
    return credit_ns - max(metered_ns, LEAST_CHARGE_NS) if weight_milli > 0 else 0


def capped(weight_milli: int, credit_ns: int) -> int:
    """Credit no higher than a member of this weight may keep."""
    return min(credit_ns, ROUNDS_KEPT * weight_milli * ROUND_NS // CAPACITY_MILLI)


def _choose(ready: Sequence[Contender], credits_ns: Mapping[int, int]) -> Choice:
    wanting = [each for each in ready if each.wants]
    most_left = max(wanting or ready, key=lambda each: (each.rounds_left, -each.turn_end_ns))
    return Choice(most_left.slot, credits_ns) if wanting else Choice(None, {}, awaited=most_left.slot)


def _rounds_until_credit(each: Contender) -> int:
    return -each.credit_ns // each.round_ns + 1


def _pay(contenders: Sequence[Contender], rounds: int) -> list[Contender]:
    return [
        replace(each, credit_ns=capped(each.weight_milli, each.credit_ns + rounds * each.round_ns))
        for each in contenders
        if each.weight_milli > 0
    ]
