"""The ways to decide how many replicas there should be, each with the settings that it may be tuned by."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.autoscale.demands import Case, Stretch
from benchmarks.autoscale.foretold import Foretold
from benchmarks.autoscale.serve_policy import ServePolicy
from benchmarks.autoscale.world import Arm, Deployment, Seen, highest_ahead, needed
from configs.autoscale_settings import AutoscaleSettings, CapacityPoint, ScaledDeployment
from pool.policy.autoscale.predictive import PredictiveAutoscaler

Setting = Mapping[str, float]
STATIC, SERVE, KPA, SEASONAL, EITHER, RECPOOL, ORACLE = (
    "static peak",
    "Ray Serve",
    "KPA",
    "seasonal-naive",
    "season or now",
    "Recpool",
    "oracle",
)
QUANTILES = (0.6, 0.8, 0.9, 0.95, 0.99)


@dataclass(frozen=True)
class Ground:
    """What an arm is made for.

    Attributes:
        foretold: forecasts of the stretch, for the arm that goes by them.
    """

    case: Case
    seen: Stretch
    deployment: Deployment
    foretold: Callable[[], Foretold]

    @property
    def needed(self) -> np.ndarray:
        return needed(self.deployment, self.seen.arrived, self.case.interval_s)

    @property
    def lead(self) -> int:
        """Intervals from a decision until a replica that it starts serves."""
        return int(np.ceil(self.case.start_s / self.case.interval_s)) + 1


class Fixed:
    def __init__(self, replicas: int):
        self._replicas = replicas

    def decide(self, seen: Seen) -> int:
        return self._replicas


class ByPlan:
    """What was written down before, by interval; the last one goes on."""

    def __init__(self, replicas: np.ndarray):
        self._replicas, self._place = replicas.tolist(), 0

    def decide(self, seen: Seen) -> int:
        self._place += 1
        return self._replicas[min(self._place, len(self._replicas)) - 1]


class Seasonal:
    """As a season before, up to the time when a replica would be ready, with room.

    Args:
        rates: a season before, by interval, from the first one on.
        ahead: intervals.
        reacts: and never for less than comes now, with the same room.
    """

    def __init__(self, deployment: Deployment, rates: np.ndarray, ahead: int, room: float, hold_s: float, reacts: bool):
        self._each_per_s, self._rates, self._ahead, self._room = deployment.each_per_s, rates, ahead, room
        self._hold_s, self._reacts, self._place = hold_s, reacts, 0
        self._wanted: deque[tuple[float, int]] = deque()

    def decide(self, seen: Seen) -> int:
        self._place += 1
        later = self._rates[self._place : self._place + self._ahead].max(initial=0.0)
        now_per_s = seen.signals.arrived / seen.signals.interval_s if self._reacts else 0.0
        wanted = max(1, int(np.ceil(self._room * max(later, now_per_s) / self._each_per_s)))
        return held(self._wanted, seen.signals.at_s, wanted, self._hold_s)


class Kpa:
    """Knative's pod autoscaler: mean concurrency over a stable and over a panic window.

    Source: knative.dev/docs/serving/autoscaling/kpa-specific and pkg/autoscaler/scaling/autoscaler.go of Knative.

    Args:
        target: requests under way for one replica, the utilisation of the target included.
        stable_s: window; the panic window is a tenth of it, one interval at least.
        hold_s: delay of the way down.
    """

    PANIC, PANIC_SHARE = 2.0, 0.1

    def __init__(self, target: float, stable_s: float, hold_s: float):
        self._target, self._stable_s, self._hold_s = target, stable_s, hold_s
        self._ongoing: deque[tuple[float, float]] = deque()
        self._wanted: deque[tuple[float, int]] = deque()
        self._panic_until_s, self._panic_most = float("-inf"), 0

    def decide(self, seen: Seen) -> int:
        at_s, interval_s = seen.signals.at_s, seen.signals.interval_s
        self._ongoing.append((at_s, seen.ongoing))
        while self._ongoing[0][0] <= at_s - max(self._stable_s, interval_s):
            self._ongoing.popleft()
        short_s = max(interval_s, self.PANIC_SHARE * self._stable_s)
        stable = float(np.mean([each for _, each in self._ongoing]))
        short = float(np.mean([each for then_s, each in self._ongoing if then_s > at_s - short_s]))
        ready = max(1, seen.signals.running)
        wanted, panic = (int(np.ceil(each / self._target)) for each in (stable, short))
        if panic / ready >= self.PANIC:
            self._panic_until_s = at_s + self._stable_s
        if at_s < self._panic_until_s:
            self._panic_most = max(self._panic_most, panic, ready)
            wanted = self._panic_most
        else:
            self._panic_most = 0
        return held(self._wanted, at_s, max(1, wanted), self._hold_s)


class Recpool:
    """The autoscaler itself."""

    def __init__(self, ground: Ground, quantile: float, hold_s: float, headroom: float):
        case, deployment = ground.case, ground.deployment
        curve = tuple(CapacityPoint(rate_per_s=rate, p99_ms=p99_ms) for rate, p99_ms in deployment.curve.points)
        stated = ScaledDeployment(max_replicas=deployment.most, start_s=case.start_s, curve=curve)
        settings = AutoscaleSettings(
            interval_s=case.interval_s,
            slo_ms=deployment.slo_ms,
            quantile=quantile,
            headroom=headroom,
            hot_quantile=max(quantile, 0.99),
            fast_s=case.interval_s,
            down_after_s=hold_s,
        )
        told: Any = ground.foretold()
        self._scaler = PredictiveAutoscaler(settings, stated, case.forecast, told)

    def decide(self, seen: Seen) -> int:
        return self._scaler.decide(seen.signals).replicas


def held(wanted: deque[tuple[float, int]], at_s: float, replicas: int, hold_s: float) -> int:
    """The most that was wanted within a time; the way down of all arms that have one."""
    while wanted and wanted[-1][1] <= replicas:
        wanted.pop()
    wanted.append((at_s, replicas))
    while wanted[0][0] < at_s - hold_s:
        wanted.popleft()
    return wanted[0][1]


TARGETS = (0.8, 1.0, 1.2, 1.3, 1.4, 1.5, 1.6, 2.0)
ROOMS = (1.0, 1.02, 1.05, 1.1, 1.15, 1.2, 1.3, 1.4)
HOLDS_S = (0.0, 120.0, 300.0, 600.0, 1_800.0)
GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    SERVE: {
        "target": TARGETS,
        "up_s": (0.0, 30.0),
        "down_s": (0.0, 300.0, 600.0, 900.0),
        "look_back_s": (30.0,),
        "gain": (0.1, 0.3, 1.0),
    },
    KPA: {
        "target": TARGETS,
        "stable_s": (60.0, 300.0),
        "hold_s": (0.0, 300.0, 600.0, 900.0),
    },
    SEASONAL: {"room": ROOMS, "hold_s": HOLDS_S},
    EITHER: {"room": ROOMS, "hold_s": HOLDS_S},
    RECPOOL: {"quantile": QUANTILES, "hold_s": (120.0, 600.0, 1_800.0), "headroom": (1.0, 1.05, 1.1)},
}
"""Settings that are tried of each arm on the tuning part."""


def settings_of(name: str) -> Iterator[Setting]:
    grid = GRIDS.get(name, {})
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def made(name: str, ground: Ground, setting: Setting) -> Arm:
    """An arm for one stretch."""
    deployment = ground.deployment
    if name == STATIC:
        return Fixed(int(np.ceil(ground.seen.peak_per_s / deployment.each_per_s)))
    if name == ORACLE:
        return ByPlan(highest_ahead(ground.needed, ground.lead)[1:])
    if name in (SEASONAL, EITHER):
        assert ground.seen.season is not None
        room, hold_s = setting["room"], setting["hold_s"]
        return Seasonal(deployment, ground.seen.season, ground.lead, room, hold_s, reacts=name == EITHER)
    if name == SERVE:
        return ServePolicy(deployment.most, **setting)
    if name == KPA:
        return Kpa(**setting)
    return Recpool(ground, **setting)


def names_of(case: Case) -> tuple[str, ...]:
    """The arms that a case has."""
    seasonal = (SEASONAL, EITHER) if case.season_s is not None else ()
    return (STATIC, SERVE, KPA, *seasonal, RECPOOL, ORACLE)
