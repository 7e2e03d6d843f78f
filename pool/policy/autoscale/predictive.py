"""The autoscaler: replicas for what comes when a new one would be ready, and corrections for what was not foreseen.

    foreseen   upper quantiles of the forecast of total demand, up to the time that a replica needs to start
    queue      what will have queued up by then, worked off in time
    panic      a present rate far above what runs sustain; while it lasts no replica leaves
    lateness   replicas that do less than was measured: one is added at a time

The highest of them is provided for. A replica leaves only when none of them needed it for a while, nor will within
another start. Pure: no clock, no chance.

Source: the panic window after Knative's KPA; the window of the way down after Kubernetes' stabilisation window.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass

from configs.autoscale_settings import AutoscaleSettings, ScaledDeployment
from configs.forecast_settings import ForecastSettings
from pool.policy.autoscale.demand import Crowding, Demand
from pool.policy.autoscale.lateness import Lateness
from pool.policy.autoscale.signals import ServiceCurve, Signals, Target
from pool.policy.forecast.entropy import Usual
from pool.policy.forecast.forecaster import Forecaster


@dataclass(frozen=True)
class Need:
    """So many replicas, and what for."""

    replicas: int
    reason: str


class PredictiveAutoscaler:
    """Decides for one deployment.

    Args:
        forecaster: that goes on from what it learnt before.

    Raises:
        ConfigError: the objective is kept at no measured rate.
    """

    def __init__(
        self,
        settings: AutoscaleSettings,
        deployment: ScaledDeployment,
        forecast: ForecastSettings,
        forecaster: Forecaster | None = None,
    ):
        self._settings, self._bounds = settings, deployment
        self.curve = curve_of(deployment)
        self.each_per_s = self.curve.sustained_per_s(settings.slo_ms)
        self.demand = Demand(forecast, settings.fast_s, forecaster)
        self._crowding = Crowding(Usual())
        self._lateness = Lateness(settings.late_share, max(self.curve.start_s, 3 * settings.fast_s))
        self._hot = False
        self._panic_until_s = float("-inf")
        self._wanted: deque[tuple[float, int]] = deque()
        self._target: int | None = None
        self._now_s = float("-inf")

    def decide(self, signals: Signals) -> Target:
        """How many replicas there should be from now on."""
        elapsed_s = max(0.0, signals.at_s - self._now_s) if math.isfinite(self._now_s) else 0.0
        if signals.at_s < self._now_s:
            self._rebase(signals.at_s - self._now_s)
        self._now_s = signals.at_s
        self.demand.take(signals)
        self._hot = self._crowding.take(signals.entropy_bits)
        before = self._target if self._target is not None else self._found(signals)
        self._lateness.take(signals, before, self.each_per_s, elapsed_s)
        needs = [*self._foreseen(), self._present(signals, before), *self._panic(signals, before)]
        most = max(needs, key=lambda need: need.replicas)
        target, why = self._held(most.replicas + self._lateness.extra, before)
        self._target = min(self._bounds.max_replicas, max(self._bounds.min_replicas, target))
        return Target(self._target, tuple(self._reasons(signals, most, why, target)))

    @property
    def _quantile(self) -> float:
        return self._settings.hot_quantile if self._hot else self._settings.quantile

    def _foreseen(self) -> list[Need]:
        """For every moment until a replica that is started now would be of use, and the next decision takes over."""
        ready_s = self.curve.start_s + self._settings.interval_s
        leads_s = (0.0, ready_s / 2, ready_s)
        needs = []
        for lead_s, told in zip(leads_s, self.demand.ahead(leads_s, self._quantile), strict=False):
            per_s = told.rates[0] * self._settings.headroom
            needs.append(self._need(per_s, f"forecast {per_s:.0f}/s at +{lead_s:.0f} s (q{100 * self._quantile:g})"))
        return needs

    def _present(self, signals: Signals, before: int) -> Need:
        """The present rate, and the queue as it will be when a replica that is started now is ready.

        Beside a forecast, which allows for chance, the rate counts as far as it is sure; without one, as far as it
        may be. What was asked for before and is missing is on its way, as Serve starts it again.
        """
        least_per_s, highest_per_s = self.demand.bounds_per_s()
        now_per_s = least_per_s if self.demand.is_current else highest_per_s
        start_s, most_per_s = self.curve.start_s, self.curve.points[-1][0]
        answered_per_s = most_per_s * (signals.running + before) / 2  # halfway of the start, as it were
        grown = signals.queued + (now_per_s - answered_per_s) * start_s if signals.queued else 0.0
        left = min(grown, max(signals.queued, answered_per_s * self._settings.longest_wait_s))
        if left > 0:
            said = f"{now_per_s:.0f}/s now, and {left:.0f} in the queue in {start_s:.0f} s,"
            return self._need(now_per_s + left / self._settings.drain_s, said)
        return self._need(now_per_s, f"{now_per_s:.0f}/s now")

    def _panic(self, signals: Signals, before: int) -> list[Need]:
        """While it lasts, what there is stays."""
        now_per_s = self.demand.now_per_s()
        sustained_per_s = self.each_per_s * max(1, signals.running)
        if now_per_s >= self._settings.panic_ratio * sustained_per_s:
            self._panic_until_s = signals.at_s + self._settings.panic_s
        if signals.at_s >= self._panic_until_s:
            return []
        said = f"panic: {now_per_s:.0f}/s now, {signals.running} running sustain {sustained_per_s:.0f}/s; none leaves,"
        return [Need(before, f"{said} {before} stay")]

    def _found(self, signals: Signals) -> int:
        """What runs at the first decision; somebody needed it, perhaps an autoscaler before this one."""
        there = max(1, signals.running + signals.starting)
        self._wanted.append((signals.at_s, there))
        return there

    def _held(self, wanted: int, before: int) -> tuple[int, str]:
        """On the way down the most that was wanted within the window, or will be within another start."""
        now_s, window_s = self._now_s, self._settings.down_after_s
        while self._wanted and self._wanted[-1][1] <= wanted:
            self._wanted.pop()
        self._wanted.append((now_s, wanted))
        while self._wanted[0][0] < now_s - window_s:
            self._wanted.popleft()
        if wanted >= before:
            return wanted, ""
        at_s, most = self._wanted[0]
        held, why = min(before, most), f"{most} were needed {now_s - at_s:.0f} s ago"
        if held < before:
            later = self.demand.ahead((2 * self.curve.start_s + self._settings.interval_s,), self._quantile)
            again = self._replicas(later[0].rates[0] * self._settings.headroom) + self._lateness.extra if later else 0
            if again > held:
                held, why = min(before, again), f"{again} will be needed soon"
        return held, f"{held} stay for {wanted}, as {why}" if held > wanted else ""

    def _need(self, per_s: float, said: str) -> Need:
        replicas = self._replicas(per_s)
        return Need(replicas, f"{said} needs {replicas} of {self.each_per_s:.3g}/s each")

    def _replicas(self, per_s: float) -> int:
        return math.ceil(per_s / self.each_per_s - 1e-9)

    def _reasons(self, signals: Signals, most: Need, held: str, target: int) -> list[str]:
        reasons = [most.reason]
        if held:
            reasons.append(held)
        if self._hot:
            reasons.append(f"requests crowd: their entropy fell by {self._crowding.fall_bits:.1f} bits")
        if self._lateness.extra:
            reasons.append(self._lateness.reason)
        if not self.demand.is_current and self.demand.forecaster.step >= 0:
            reasons.append("the forecast rests until the clock is where it was")
        if self._target != target:
            reasons.append(f"{target} is outside {self._bounds.min_replicas}..{self._bounds.max_replicas}")
        missing = (self._target or 0) - signals.running - signals.starting
        if missing > 0 and signals.running + signals.starting:
            reasons.append(f"{missing} of {self._target} not there yet")
        return reasons

    def _rebase(self, back_s: float) -> None:
        """The clock went back: what was remembered by it goes back with it, so no window lasts longer for that."""
        self._wanted = deque((at_s + back_s, wanted) for at_s, wanted in self._wanted)
        self._panic_until_s += back_s


def curve_of(deployment: ScaledDeployment) -> ServiceCurve:
    """The measured curve as the settings have it."""
    return ServiceCurve(tuple((each.rate_per_s, each.p99_ms) for each in deployment.curve), deployment.start_s)
