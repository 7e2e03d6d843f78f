"""One device in virtual time, shared by the rules of the live gate.

Guaranteed batches have it as soon as the step under way has ended, side by side as far as there are lanes. While
there are none, the others take turns as `pool.gate.turns` says. Turns are worked out only when somebody looks, so
that a device without requests costs no events.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import simpy

from pool.gate.turns import Contender, carried, charge, next_turn
from pool.simulator.world import Copy, Work

NS = 1_000_000_000


@dataclass(eq=False)
class _Batch:
    left_s: float
    done: simpy.Event
    lease: str


@dataclass(eq=False)
class _Member:
    """Work that takes turns; ``used_s`` counts since the last reading."""

    copy: Copy
    work: Work
    credit_ns: int = 0
    paid_milli: int = 0
    turn_end_ns: int = 0
    used_s: float = 0.0

    @property
    def weight_milli(self) -> int:
        return round(self.copy.weight_milli * self.work.factor)


class SimulatedGate:
    """The device of some leases.

    Args:
        lanes: batches that are computed at full speed side by side.
    """

    def __init__(self, env: simpy.Environment, lanes: int):
        self._env, self._lanes = env, lanes
        self._batches: list[_Batch] = []
        self._members: dict[str, _Member] = {}
        self._used_s: dict[str, float] = {}
        self._seen_s = env.now
        self._holder: _Member | None = None
        self._step_end_s = env.now
        self._plan = 0

    def compute(self, lease: str, work_s: float) -> simpy.Event:
        """A guaranteed batch of so many seconds of one lane; the event is its end."""
        self.catch_up()
        batch = _Batch(work_s, self._env.event(), lease)
        self._batches.append(batch)
        self._look_again()
        return batch.done

    def share(self, members: dict[str, tuple[Copy, Work]]) -> None:
        """Who takes turns from now on, by lease."""
        self.catch_up()
        if self._holder is not None and self._holder.copy.view.id not in members:
            self._end_step()
        self._members = {
            lease: self._members.get(lease) or _Member(copy, work) for lease, (copy, work) in members.items()
        }
        self._look_again()

    def fail(self) -> None:
        """The device is lost with all that is on it; whoever waits for a batch is told by somebody else."""
        self.catch_up()
        self._batches, self._members, self._holder = [], {}, None
        self._plan += 1

    def readings(self) -> dict[str, float]:
        """Device time by lease since this was asked last, in seconds of one lane for batches and of all for turns."""
        self.catch_up()
        used, self._used_s = self._used_s, {}
        for lease, member in self._members.items():
            used[lease] = used.get(lease, 0.0) + member.used_s
            member.used_s = 0.0
        return used

    def catch_up(self) -> None:
        """Account for everything up to now."""
        now_s = self._env.now
        while self._seen_s < now_s:
            if self._holder is not None:
                if self._step_end_s > now_s:
                    self._seen_s = now_s
                    return
                self._seen_s = self._step_end_s
                self._end_step()
            elif self._batches:
                self._compute(now_s - self._seen_s)
                self._seen_s = now_s
            else:
                self._skip_steps(now_s)
                if not self._begin_step():
                    self._seen_s = now_s
        if self._holder is not None and self._step_end_s <= now_s:
            self._end_step()

    def _compute(self, span_s: float) -> None:
        """Batches go on; none ends before the end of the span, as whoever waits for it is woken then."""
        rate = min(1.0, self._lanes / len(self._batches))
        for batch in self._batches:
            batch.left_s -= span_s * rate
            self._used_s[batch.lease] = self._used_s.get(batch.lease, 0.0) + span_s * rate

    def _skip_steps(self, now_s: float) -> None:
        """Whoever is alone has every turn: the steps that end before now are taken in one go. What it would have of its
        round by then is not kept; that is less than a step or two."""
        wanting = [member for member in self._members.values() if not member.work.is_done]
        if len(wanting) != 1:
            return
        [member] = wanting
        step_s = member.work.settings.unit_ms / 1e3
        steps = member.work.limited(int((now_s - self._seen_s) / step_s) - 1)
        if steps > 0:
            self._seen_s += steps * step_s
            member.used_s += steps * step_s
            member.work.advance(float(steps), self._seen_s)
            member.turn_end_ns = round(self._seen_s * NS)

    def _begin_step(self) -> bool:
        names = list(self._members)
        choice = next_turn([self._contender(at, self._members[name]) for at, name in enumerate(names)])
        if choice.slot is None:
            return False
        for slot, credit_ns in choice.credits_ns.items():
            self._write(self._members[names[slot]], credit_ns)
        self._holder = self._members[names[choice.slot]]
        self._step_end_s = self._seen_s + self._holder.work.settings.unit_ms / 1e3
        return True

    def _contender(self, slot: int, member: _Member) -> Contender:
        weight = member.weight_milli
        credit_ns = carried(weight, member.paid_milli, member.credit_ns)
        return Contender(slot, weight, credit_ns, not member.work.is_done, False, member.turn_end_ns)

    def _write(self, member: _Member, credit_ns: int) -> None:
        member.credit_ns, member.paid_milli = credit_ns, member.weight_milli

    def _end_step(self) -> None:
        member, self._holder = self._holder, None
        assert member is not None
        weight, step_s = member.weight_milli, member.work.settings.unit_ms / 1e3
        credit_ns = carried(weight, member.paid_milli, member.credit_ns)
        self._write(member, charge(weight, credit_ns, round(step_s * NS)))
        member.used_s += step_s
        member.turn_end_ns = round(self._seen_s * NS)
        member.work.advance(1.0, self._seen_s)

    def _look_again(self) -> None:
        """Wake when the next batch ends, or when the step under way does and batches may begin."""
        self._plan += 1
        if not self._batches:
            return
        if self._holder is not None:
            wait_s = self._step_end_s - self._env.now
        else:
            rate = min(1.0, self._lanes / len(self._batches))
            wait_s = min(batch.left_s for batch in self._batches) / rate
        due = self._env.timeout(max(0.0, wait_s))
        assert due.callbacks is not None
        due.callbacks.append(partial(self._due, self._plan))

    def _due(self, plan: int, _: simpy.Event) -> None:
        if plan != self._plan:
            return
        self.catch_up()
        ended = [batch for batch in self._batches if batch.left_s <= 1e-12]
        self._batches = [batch for batch in self._batches if batch.left_s > 1e-12]
        for batch in ended:
            batch.done.succeed()
        self._look_again()
