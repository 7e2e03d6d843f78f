"""A learned split of the devices against the planner's own: violations, use of devices and work done, day by day.

The bandit learns on days of the first 70% of the trace, in the simulator; then it is frozen and used under its guard
on days of the last 30%. Each of these is simulated twice with the same seed, once with the planner alone. Intervals
are of the mean difference over the days (bias-corrected bootstrap, 95%).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import bootstrap

from benchmarks.learned.days import day, split_days
from benchmarks.report import Floor, is_quick, print_report, print_table
from configs.errors import RecpoolError
from pool.policy.learned.bandit import BanditAllocator, SplitModel
from pool.policy.learned.settings import LearnedSettings
from pool.simulator.outcome import Outcome
from pool.simulator.simulation import Simulation

DAYS, QUICK_DAYS = 24, 5
ROUNDS, QUICK_ROUNDS = 2, 1
"""Times that the days to learn from are gone through, each time with other chance."""
FIGURES = ("violations", "p99_ms", "utilisation", "tune_steps", "warm_steps", "reward")


@dataclass(frozen=True)
class Pair:
    """A held-out day, twice."""

    number: int
    planner: dict[str, float]
    learned: dict[str, float]


def learn(days: list[int], rounds: int, settings: LearnedSettings) -> SplitModel:
    model = SplitModel(settings)
    for turn in range(rounds):
        for number in days:
            Simulation(day(number, seed=1_000 * turn + number), allocator=BanditAllocator(model, settings, True)).run()
    return model


def compare(
    days: list[int], model: SplitModel, settings: LearnedSettings
) -> tuple[list[Pair], Counter[str], Counter[str]]:
    """Every day with and without, the splits chosen, and the guard's fallbacks."""
    pairs, chosen, fallbacks = [], Counter[str](), Counter[str]()
    for number in days:
        alone = BanditAllocator(SplitModel(settings), settings, learning=False)
        guided = BanditAllocator(model, settings, learning=False)
        planner = figures_of(Simulation(day(number, seed=number), allocator=alone).run(), alone)
        learned = figures_of(Simulation(day(number, seed=number), allocator=guided).run(), guided)
        pairs.append(Pair(number, planner, learned))
        chosen += guided.chosen
        fallbacks += guided.fallbacks
    return pairs, chosen, fallbacks


def figures_of(outcome: Outcome, allocator: BanditAllocator) -> dict[str, float]:
    home = outcome.services["home"]
    warm = sum(each.steps for name, each in outcome.works.items() if name.startswith("warm"))
    return {
        "violations": home.violations / home.asked,
        "p99_ms": home.p99_ms or 0.0,
        "utilisation": outcome.utilisation,
        "tune_steps": outcome.works["tune"].steps,
        "warm_steps": warm,
        "reward": allocator.reward,
    }


def summed_up(pairs: list[Pair]) -> dict[str, dict[str, float]]:
    """Means of both, and the mean difference with its interval, by figure."""
    found = {}
    for name in FIGURES:
        planner = np.array([pair.planner[name] for pair in pairs])
        learned = np.array([pair.learned[name] for pair in pairs])
        low, high = interval(learned - planner)
        found[name] = {
            "planner": float(planner.mean()),
            "learned": float(learned.mean()),
            "difference": float((learned - planner).mean()),
            "low": low,
            "high": high,
        }
    return found


def interval(differences: np.ndarray) -> tuple[float, float]:
    """Of the mean, 95%; that value itself where all differences are one."""
    if np.ptp(differences) == 0:
        return float(differences[0]), float(differences[0])
    found = bootstrap((differences,), np.mean, confidence_level=0.95, rng=np.random.default_rng(0))
    return float(found.confidence_interval.low), float(found.confidence_interval.high)


def main() -> None:
    count, rounds = (QUICK_DAYS, QUICK_ROUNDS) if is_quick() else (DAYS, ROUNDS)
    settings = LearnedSettings()
    learning, held_out = split_days(count)
    model = learn(learning, rounds, settings)
    print(f"learnt from {sum(model.seen.values())} intervals of {count} days: {dict(model.seen)}", flush=True)
    pairs, chosen, fallbacks = compare(held_out, model, settings)
    found = summed_up(pairs)
    columns = ("planner", "learned", "difference", "low", "high")
    print_table(("figure", *columns), [[name, *(found[name][each] for each in columns)] for name in FIGURES])
    intervals, fell_back = sum(chosen.values()), sum(fallbacks.values())
    print(f"\n{intervals} intervals of {len(pairs)} held-out days: {dict(chosen)}")
    print(f"the guard kept the planner's split in {fell_back}: {dict(fallbacks)}\n")
    figures: dict[str, Any] = {
        "held_out_days": held_out,
        "learnt_from": dict(model.seen),
        "figures": found,
        "chosen": dict(chosen),
        "fallbacks": dict(fallbacks),
        "fallback_share": fell_back / intervals,
    }
    print_report("learned", figures, floors(found), emulated=True)


def floors(found: dict[str, dict[str, float]]) -> list[Floor]:
    """It may cost nobody anything: not more violations, and not less useful work, beyond what chance explains."""
    return [
        Floor("violations over the planner's, lower end of the interval", found["violations"]["low"], 0.0, "lower"),
        Floor("reward over the planner's, higher end of the interval", found["reward"]["high"], 0.0),
    ]


if __name__ == "__main__":
    try:
        main()
    except RecpoolError as error:
        raise SystemExit(f"error: {error.message}") from error
