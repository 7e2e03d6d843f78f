"""A contextual bandit that chooses among a few splits, and leaves the planner's alone unless it is sure.

One Bayesian linear regression for each split foretells what an interval under it brings, from what the interval
before looked like. While it learns, it takes the split with the highest upper bound (LinUCB). In use, a guard comes
first:

    thin headroom   a service is near or beyond its objective, or requests wait: the planner's split
    unsure          the best split's foretelling is too wide: the planner's split
    no better       its lower bound is not above what the planner's split is foretold: the planner's split

Source: L. Li, W. Chu, J. Langford, R. Schapire, "A contextual-bandit approach to personalized news article
recommendation", WWW 2010; the regressions are river's.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from river.linear_model import BayesianLinearRegression

from pool.policy.learned.settings import LearnedSettings
from pool.policy.learned.split import KEPT, Split, SplitSignals

DAY_S = 86_400.0
SPLITS: tuple[Split, ...] = (
    KEPT,
    Split("no fine-tuning", paused=frozenset({"finetune"})),
    Split("serving alone", paused=frozenset({"finetune", "warmup", "evaluate"})),
    Split("warm-up first", factors={"warmup": 4.0}),
    Split("small batches", rows_part=0.5),
)
"""What is chosen from; the first is the planner's own."""


class Foretold(NamedTuple):
    """Reward of an interval: its mean, and how far off the mean itself may be."""

    mean: float
    spread: float


@dataclass(frozen=True)
class _Tried:
    """What an interval was begun with."""

    split: str
    context: Mapping[str, float]
    done_s: Mapping[str, float]


class SplitModel:
    """What is known of the splits. Learning goes on through any number of runs.

    Attributes:
        seen: intervals learnt from, by split.
    """

    def __init__(self, settings: LearnedSettings):
        make: Any = BayesianLinearRegression  # its hints say whole numbers; it takes any
        self._noise = settings.noise
        self._of = {split.name: make(beta=1 / settings.noise**2) for split in SPLITS}
        self.seen: Counter[str] = Counter()

    def learn(self, split: str, context: Mapping[str, float], reward: float) -> None:
        self._of[split].learn_one(dict(context), reward)
        self.seen[split] += 1

    def foretell(self, split: str, context: Mapping[str, float]) -> Foretold:
        if not self.seen[split]:
            return Foretold(0.0, math.inf)
        told = self._of[split].predict_one(dict(context), with_dist=True)
        return Foretold(told.mu, math.sqrt(max(0.0, told.sigma**2 - self._noise**2)))


class BanditAllocator:
    """Chooses the split of each interval; see the module.

    Args:
        learning: try splits and learn from what they bring; else use what is known, under the guard.

    Attributes:
        chosen: intervals by split. fallbacks: intervals in which the guard kept the planner's split, by its reason.
        reward: of all intervals together.
    """

    def __init__(self, model: SplitModel, settings: LearnedSettings, learning: bool, splits: Sequence[Split] = SPLITS):
        self._model, self._settings, self._learning, self._splits = model, settings, learning, splits
        self._tried: _Tried | None = None
        self.chosen: Counter[str] = Counter()
        self.fallbacks: Counter[str] = Counter()
        self.reward = 0.0

    def decide(self, seen: SplitSignals) -> Split:
        if self._tried is not None:
            reward = self.reward_of(seen, self._tried.done_s)
            self.reward += reward
            if self._learning:
                self._model.learn(self._tried.split, self._tried.context, reward)
        context = context_of(seen)
        split = self._explore(context) if self._learning else self._guarded(seen, context)
        self.chosen[split.name] += 1
        self._tried = _Tried(split.name, context, dict(seen.done_s))
        return split

    def reward_of(self, seen: SplitSignals, before_s: Mapping[str, float]) -> float:
        """Of an interval: share of the devices that became useful work, less what its violations cost."""
        worth = {"warmup": self._settings.warmup_worth, "evaluate": self._settings.warmup_worth}
        gained = sum(worth.get(kind, 1.0) * (done - before_s.get(kind, 0.0)) for kind, done in seen.done_s.items())
        missed = seen.violations / seen.arrived if seen.arrived else 0.0
        return gained / (seen.interval_s * seen.devices) - self._settings.violation_cost * min(1.0, missed)

    def _explore(self, context: Mapping[str, float]) -> Split:
        told = {split.name: self._model.foretell(split.name, context) for split in self._splits}
        width = self._settings.explore
        return max(self._splits, key=lambda each: told[each.name].mean + width * told[each.name].spread)

    def _guarded(self, seen: SplitSignals, context: Mapping[str, float]) -> Split:
        if seen.pressure > self._settings.most_pressure or seen.queued > 0:
            return self._fall_back("thin headroom")
        told = {split.name: self._model.foretell(split.name, context) for split in self._splits}
        best = max(self._splits, key=lambda each: told[each.name].mean)
        if best is self._splits[0]:
            return best
        if told[best.name].spread > self._settings.most_spread:
            return self._fall_back("unsure")
        sure = told[best.name].mean - self._settings.sureness * told[best.name].spread
        return best if sure > told[self._splits[0].name].mean else self._fall_back("no better")

    def _fall_back(self, reason: str) -> Split:
        self.fallbacks[reason] += 1
        return self._splits[0]


def context_of(seen: SplitSignals) -> dict[str, float]:
    """What the regressions are told of an interval; all within about 0..2."""
    day = 2 * math.pi * (seen.at_s % DAY_S) / DAY_S
    pressure, busy = min(seen.pressure, 2.0), seen.busy
    return {
        "one": 1.0,
        "pressure": pressure,
        "pressure_high": max(0.0, pressure - 0.7),
        "busy": busy,
        "busy_high": max(0.0, busy - 0.6),
        "late": min(1.0, seen.violations / seen.arrived * 10) if seen.arrived else 0.0,
        "warming": float(seen.waiting.get("warmup", 0) > 0),
        "tuning": float(seen.waiting.get("finetune", 0) > 0),
        "sine": math.sin(day),
        "cosine": math.cos(day),
    }
