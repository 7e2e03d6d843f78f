"""How an answer is made in the time that is left: what a stage is expected to take, and what to do without.

The ladder, rung by rung: fewer candidates → skip fine rank → recall order only → cached popular.
"""

from __future__ import annotations

FEWEST_CANDIDATES = 20
"""Below this, ranking fewer candidates costs more quality than skipping the stage saves time."""


class StageCosts:
    """Expected milliseconds of each stage, learnt from the calls made.

    Args:
        weight: share of the newest call in the moving average.
        forget: factor an expectation shrinks by when it kept a stage from running, so that one slow
            call (a cold start, say) cannot switch a stage off for good.
    """

    def __init__(self, weight: float = 0.1, forget: float = 0.9):
        self._weight = weight
        self._forget = forget
        self._fixed_ms: dict[str, float] = {}

    def observe(self, stage: str, took_ms: float) -> None:
        before = self._fixed_ms.get(stage, took_ms)
        self._fixed_ms[stage] = before + self._weight * (took_ms - before)

    def expected_ms(self, stage: str) -> float:
        """0 until the stage has run once."""
        return self._fixed_ms.get(stage, 0.0)

    def affordable(self, stage: str, candidates: int, remaining_ms: float) -> int:
        """How many of ``candidates`` the stage can take in the time left; 0 means skip it.

        The stage's time is taken as proportional to its candidates, which errs on the slow side for
        fewer of them.
        """
        if remaining_ms <= 0:
            return 0
        expected = self.expected_ms(stage)
        if expected <= remaining_ms:
            return candidates
        self._fixed_ms[stage] = expected * self._forget
        fitting = int(candidates * remaining_ms / expected)
        return fitting if fitting >= FEWEST_CANDIDATES else 0
