"""Every arm at its best by one rule, and all arms on the same stretch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.autoscale.arms import GRIDS, ORACLE, QUANTILES, SERVE, Ground, Setting, made, names_of, settings_of
from benchmarks.autoscale.demands import CASES, Case, stretch
from benchmarks.autoscale.figures import Row, row_of
from benchmarks.autoscale.foretold import foretell
from benchmarks.autoscale.world import Played, play

BUDGET = 1.2
"""Slice-hours over the oracle's that tuned settings may need."""
MOST_ACTIONS = 60.0
"""An hour; settings that change replicas more often are not chosen."""


def ground_of(case: Case, seed: int, tuning: bool = False) -> Ground:
    """A stretch of a trace, whose forecasts are made when they are first asked for."""
    seen = stretch(case, case.read(), seed, tuning)
    told: list[Any] = []

    def foretold() -> Any:
        if not told:
            told.append(foretell(case, seen, QUANTILES))
        return told[0].again()

    return Ground(case, seen, case.deployment(), foretold)


def played(name: str, ground: Ground, setting: Setting) -> Played:
    case, seen = ground.case, ground.seen
    replicas = int(ground.needed[: ground.lead].max())
    arm = made(name, ground, setting)
    return play(arm, ground.deployment, seen.start_s, case.interval_s, seen.arrived, replicas)


def tune(place: int) -> dict[str, Setting]:
    """The settings of every arm that are best on the tuning part."""
    case = CASES[place]
    ground = ground_of(case, 0, tuning=True)
    budget = BUDGET * played(ORACLE, ground, {}).hours
    chosen: dict[str, Setting] = {name: {} for name in names_of(case)}
    for name in sorted((each for each in names_of(case) if each in GRIDS), key=lambda each: each != SERVE):
        tried = [(setting, played(name, ground, setting)) for setting in settings_of(name)]
        chosen[name], best = best_of(tried, budget)
        budget = best.hours if name == SERVE else budget
    return chosen


def best_of(tried: Sequence[tuple[Setting, Played]], budget: float) -> tuple[Setting, Played]:
    """The fewest violations within the slice-hours; where none is, the fewest slice-hours. Of those that flap only
    where all do."""
    calm = [each for each in tried if each[1].actions_per_hour <= MOST_ACTIONS] or tried
    within = [each for each in calm if each[1].hours <= budget]
    if within:
        return min(within, key=lambda each: (each[1].violations, each[1].hours))
    return min(calm, key=lambda each: each[1].hours)


def compare(place: int, chosen: Mapping[str, Setting], seed: int) -> dict[str, Row]:
    """All arms over the stretch of one seed."""
    ground = ground_of(CASES[place], seed)
    plays = {name: played(name, ground, setting) for name, setting in chosen.items()}
    return {name: row_of(each, plays[ORACLE]) for name, each in plays.items()}
