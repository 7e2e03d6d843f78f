"""Autoscalers on the same demand: who fails fewer requests, and what it costs.

Every arm is tuned by the same rule on the part of a trace from 40% to 70%: the fewest violations among its settings
that need at most so many slice-hours. For Ray Serve's policy that is `BUDGET` times the oracle's; for the others it is
what Serve's then needed, so nobody wins by spending more. Reported is the last 30%, with other seeds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

from benchmarks.autoscale.arms import (
    GRIDS,
    ORACLE,
    QUANTILES,
    RECPOOL,
    SERVE,
    Ground,
    Setting,
    made,
    names_of,
    settings_of,
)
from benchmarks.autoscale.demands import CASES, Case, stretch
from benchmarks.autoscale.figures import COLUMNS, Row, floors, paired_ratio, row_of, summary
from benchmarks.autoscale.foretold import foretell
from benchmarks.autoscale.world import Played, play
from benchmarks.report import print_report, print_table
from configs.errors import RecpoolError

SEEDS = (1, 2, 3, 4, 5)
BUDGET = 1.2
"""Slice-hours over the oracle's that tuned settings may need."""
MOST_ACTIONS = 60.0
"""An hour; settings that change replicas more often are not chosen."""


def main() -> None:
    found: dict[str, dict[str, list[Row]]] = {}
    figures: dict[str, Any] = {}
    with ProcessPoolExecutor(_workers(), mp_context=get_context("spawn")) as workers:
        tuned = dict(zip((case.name for case in CASES), workers.map(tune, range(len(CASES))), strict=True))
        for place, case in enumerate(CASES):
            chosen = tuned[case.name]
            by_seed = list(workers.map(partial(compare, place, chosen), SEEDS))
            found[case.name] = rows = {name: [each[name] for each in by_seed] for name in names_of(case)}
            figures[case.name] = {"settings": chosen, "arms": summary(rows), "recpool_over": _ratios(rows)}
            show(case, figures[case.name])
    print()
    print_report("autoscale", {"seeds": len(SEEDS), "budget": BUDGET, "traces": figures}, floors(found))


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


def show(case: Case, figures: Mapping[str, Any]) -> None:
    print(f"\n{case.name}: a replica starts in {case.start_s:g} s; mean [95% interval] of {len(SEEDS)} seeds")
    rows = [
        (name, *(_said(arm[column]) for column in COLUMNS), ", ".join(f"{k} {v:g}" for k, v in setting.items()))
        for name, arm in figures["arms"].items()
        for setting in [figures["settings"][name]]
    ]
    print_table(("arm", *COLUMNS, "settings"), rows)


def _said(figure: list[float]) -> str:
    return "{:.4g} [{:.4g}, {:.4g}]".format(*figure)


def _ratios(rows: Mapping[str, list[Row]]) -> dict[str, dict[str, list[float]]]:
    """Recpool over every other arm."""
    columns = ("violations_share", "hours")
    others = [name for name in rows if name != RECPOOL]
    return {name: {column: paired_ratio(rows, name, column) for column in columns} for name in others}


def _workers() -> int:
    return max(1, min(4, len(os.sched_getaffinity(0))))


if __name__ == "__main__":
    try:
        main()
    except RecpoolError as error:
        raise SystemExit(f"error: {error.message}") from error
