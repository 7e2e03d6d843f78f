"""How large a micro-step may be: as many units of work as stay within the limit, learnt from what steps took."""

from __future__ import annotations

import math

LIMIT_MS = 5.0
SMOOTHING = 0.1
"""Weight of the newest step in the averages: about the last twenty count."""
P95_DEVIATIONS = 1.645
"""The 95th percentile of a normal distribution, in standard deviations above its mean."""
HEADROOM = 0.9
"""Of the limit that the estimate must stay below for a step to grow; the rest is for what no average foresees."""
GROWTH = 1.25
PATIENCE_STEPS, PROBE_STEPS = 4, 50
"""Good steps before growth to a size that fits even if time were proportional to units; to one that may not."""
FORGET_STEPS = 200
"""Good steps after which a size that overran may be tried again."""


class MicroStepper:
    """Chooses how many units (rows, say) the next step works on, so that 95% of steps stay within a limit.

    It grows slowly, as a step may cost something fixed beside its units, and halves at once where one is over
    the limit. One unit is never divided: where it alone is over the limit, `is_within_limit` says so, and whoever
    made the units must make them smaller.
    """

    def __init__(self, limit_ms: float = LIMIT_MS, first_units: int = 1, most_units: int = 65_536):
        assert limit_ms > 0 and 1 <= first_units <= most_units
        self._limit_ms = limit_ms
        self._units, self._most = first_units, most_units
        self._ceiling = most_units
        self._mean_ms = self._variance = math.nan
        self._good = self._since_overrun = 0

    @property
    def units(self) -> int:
        """Units of the next step, at least one."""
        return self._units

    @property
    def p95_ms(self) -> float:
        """Estimated 95th percentile of the time of a step of this many units; NaN before the first."""
        return self._mean_ms + P95_DEVIATIONS * math.sqrt(self._variance)

    @property
    def is_within_limit(self) -> bool:
        """Whether the next step is expected to stay within the limit; False only where it is a single unit."""
        return self._units > 1 or not self.p95_ms > self._limit_ms

    def observe(self, units: int, took_ms: float) -> None:
        """A step of so many units took so long: device time as metered, without waits.

        Raises:
            AssertionError: units below 1, or a time that is negative or not finite.
        """
        assert units >= 1 and took_ms >= 0 and math.isfinite(took_ms), (units, took_ms)
        self._average(took_ms * self._units / units)
        if took_ms > self._limit_ms:
            self._shrink(units, took_ms)
            return
        self._good += 1
        self._since_overrun += 1
        if self._since_overrun % FORGET_STEPS == 0:
            self._ceiling = min(self._most, math.ceil(self._ceiling * (1 + SMOOTHING)))
        self._grow()

    def _shrink(self, units: int, took_ms: float) -> None:
        self._ceiling = max(1, units - 1)
        self._good = self._since_overrun = 0
        self._resize(max(1, min(units // 2, math.floor(units * self._limit_ms / took_ms), self._units)))

    def _grow(self) -> None:
        wanted = min(math.ceil(GROWTH * self._units), self._ceiling)
        surely_fits = self.p95_ms * wanted / self._units <= HEADROOM * self._limit_ms
        patience = PATIENCE_STEPS if surely_fits else PROBE_STEPS
        if wanted > self._units and self._good >= patience and self.p95_ms <= HEADROOM * self._limit_ms:
            self._good = 0
            self._resize(wanted)

    def _resize(self, units: int) -> None:
        ratio = units / self._units
        self._mean_ms, self._variance = self._mean_ms * ratio, self._variance * ratio * ratio
        self._units = units

    def _average(self, step_ms: float) -> None:
        if math.isnan(self._mean_ms):
            self._mean_ms, self._variance = step_ms, 0.0
            return
        ahead = step_ms - self._mean_ms
        self._mean_ms += SMOOTHING * ahead
        # West's update of an exponentially weighted variance.
        self._variance = (1 - SMOOTHING) * (self._variance + SMOOTHING * ahead * ahead)
