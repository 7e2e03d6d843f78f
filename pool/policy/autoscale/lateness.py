"""Requests that are late although, by what was measured, there are replicas enough: replicas do less than that."""

from __future__ import annotations

from pool.policy.autoscale.signals import Signals

CALM = 10.0
"""Times as long as lateness must last for one replica more, all must go well for one less."""


class Lateness:
    """Replicas beyond what the curve asks for, one at a time.

    Args:
        late_share: of requests, that may be late or refused.
        after_s: seconds that it must last, which is how long the replica added before took to be of use.
    """

    def __init__(self, late_share: float, after_s: float):
        self._late_share, self._after_s = late_share, after_s
        self._late_s = self._calm_s = 0.0
        self._seen_share = 0.0
        self.extra = 0

    @property
    def reason(self) -> str:
        return f"{self.extra} more, as {100 * self._seen_share:.2g}% were late where fewer should have done"

    def take(self, signals: Signals, target: int, each_per_s: float, elapsed_s: float) -> None:
        """Count an interval.

        Args:
            target: replicas that there should have been; while some of them are missing that is the cause.
        """
        share = signals.violations / signals.arrived if signals.arrived else 0.0
        should_do = (target - self.extra) * each_per_s * signals.interval_s >= signals.arrived
        if share <= self._late_share:
            self._late_s = 0.0
            self._calm_s += elapsed_s
        elif should_do and signals.running >= target:
            self._calm_s = 0.0
            self._late_s += elapsed_s
        if self._late_s >= self._after_s:
            self.extra, self._late_s, self._seen_share = min(self.extra + 1, max(1, target)), 0.0, share
        if self._calm_s >= CALM * self._after_s:
            self.extra, self._calm_s = max(0, self.extra - 1), 0.0
