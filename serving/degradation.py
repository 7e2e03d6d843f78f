"""How an answer is made in the time that is left: what a stage is expected to take, and what to do without.

The ladder, rung by rung: fewer candidates → skip fine rank → recall order only → cached popular.
"""

from __future__ import annotations

FEWEST_CANDIDATES = 20
"""Below this, ranking fewer candidates costs more quality than skipping the stage saves time."""


class StageCosts:
    """Expected time of each stage, learnt from the calls that succeeded, a candidate of a row at a time.

    Args:
        keep: share of what was learnt that each new call leaves standing. Calls count by their size,
            so a large batch teaches more than a request for five items.
        forget: factor an expectation shrinks by when it kept a stage from running, so that one slow
            call (a cold start, say) cannot switch a stage off for good.
    """

    def __init__(self, keep: float = 0.9, forget: float = 0.9):
        self._keep = keep
        self._forget = forget
        self._learnt: dict[str, tuple[float, float]] = {}

    def observe(self, stage: str, candidates: int, took_ms: float) -> None:
        """A call over ``candidates`` (of all its rows together) took ``took_ms``."""
        work, spent = self._learnt.get(stage, (0.0, 0.0))
        self._learnt[stage] = (work * self._keep + candidates, spent * self._keep + took_ms)

    def expected_ms(self, stage: str, candidates: int) -> float:
        """0 until the stage has answered once."""
        work, spent = self._learnt.get(stage, (0.0, 0.0))
        return candidates * spent / work if work else 0.0

    def affordable(self, stage: str, candidates: int, rows: int, remaining_ms: float) -> int:
        """How many of ``candidates`` a row can have scored, in a batch of ``rows``, in its time left; 0: skip it."""
        if remaining_ms <= 0:
            return 0
        expected = self.expected_ms(stage, candidates * rows)
        if expected <= remaining_ms:
            return candidates
        work, spent = self._learnt[stage]
        self._learnt[stage] = (work, spent * self._forget)
        fitting = int(candidates * remaining_ms / expected)
        return fitting if fitting >= FEWEST_CANDIDATES else 0
