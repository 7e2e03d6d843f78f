"""How much quality a request gets under overload, by its priority: steps down when rows wait, and back up.

First fewer candidates, then DESIGN's ladder: skip fine rank → recall order only → cached popular. The
clock is an argument everywhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from configs.overload_settings import OverloadSettings
from configs.plan_settings import STAGES, StageName
from serving.priority import Priority

FEWER_CANDIDATES = "overload_fewer_candidates"
SKIPPED = "overload_skipped"
POPULAR = "overload_popular"


@dataclass(frozen=True)
class Limits:
    """What the cascade may spend on a row.

    Attributes:
        candidates: share of the candidates that a ranking stage would see, above 0 and at most 1.
        stages: those to run; without any, the answer is cached popular items.
    """

    candidates: float = 1.0
    stages: frozenset[StageName] = frozenset(STAGES)

    def share_of(self, candidates: int) -> int:
        """How many of so many candidates a stage may see; at least one of any."""
        return min(candidates, max(1, round(candidates * self.candidates)))


FULL = Limits()
LADDER: tuple[Limits, ...] = (
    FULL,
    Limits(0.75),
    Limits(0.5),
    Limits(0.3),
    Limits(0.3, frozenset({"recall", "coarse"})),
    Limits(1.0, frozenset({"recall"})),
    Limits(1.0, frozenset()),
)
LEADS = {Priority.LOW: 0, Priority.NORMAL: 2, Priority.HIGH: 5}
"""Steps that pressure must have taken before a priority's own first one."""
STEEPEST = len(LADDER) - 1 + max(LEADS.values())
SMOOTH_S = 0.1
"""Waits are averaged over about this long, so that one burst is no overload."""


class QualityController:
    """Takes a step down for every `shrink_dwell_s` that rows wait too long, sooner by as much as they wait longer
    than that, and one up for every `restore_dwell_s` that they hardly wait; in between it stays."""

    def __init__(self, settings: OverloadSettings):
        self._settings = settings
        self._step = 0
        self._changed_s = -math.inf
        self._wait_ms = 0.0
        self._seen_s = -math.inf

    @property
    def step(self) -> int:
        """0 is full quality for all; `STEEPEST` is cached popular for all."""
        return self._step

    def observe(self, wait_ms: float, now_s: float) -> None:
        """The row that had waited longest when a batch began had waited so long."""
        self._rest(now_s)
        fade = math.exp((self._seen_s - now_s) / SMOOTH_S)
        self._wait_ms = fade * self._wait_ms + (1 - fade) * wait_ms
        self._seen_s = now_s
        since_s, pressure = now_s - self._changed_s, self._wait_ms / self._settings.shrink_above_ms
        if pressure > 1 and since_s * pressure >= self._settings.shrink_dwell_s:
            self._move(min(STEEPEST, self._step + 1), now_s)
        elif self._wait_ms < self._settings.restore_below_ms and since_s >= self._settings.restore_dwell_s:
            self._move(max(0, self._step - 1), now_s)

    def limits(self, priority: Priority, now_s: float) -> Limits:
        """What a row of this priority may cost now."""
        self._rest(now_s)
        return LADDER[min(max(0, self._step - LEADS[priority]), len(LADDER) - 1)]

    def _rest(self, now_s: float) -> None:
        """While nothing came, nothing waited: the steps that time would have brought back are taken at once."""
        if not self._step:
            return
        idle_since_s = max(self._seen_s, self._changed_s)
        steps = int((now_s - idle_since_s) / self._settings.restore_dwell_s)
        if steps > 0:
            self._wait_ms, self._seen_s = 0.0, now_s
            self._move(max(0, self._step - steps), now_s)

    def _move(self, step: int, now_s: float) -> None:
        if step != self._step:
            self._step, self._changed_s = step, now_s
