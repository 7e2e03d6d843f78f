"""Autoscalers on the same demand: who fails fewer requests, and what it costs.

Every arm is tuned by the same rule on the part of a trace from 40% to 70%: the fewest violations among its settings
that need at most so many slice-hours. For Ray Serve's policy that is `BUDGET` times the oracle's; for the others it is
what Serve's then needed, so nobody wins by spending more. Reported is the last 30%, with other seeds.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import Any

from benchmarks.autoscale.arms import RECPOOL, names_of
from benchmarks.autoscale.demands import CASES, Case
from benchmarks.autoscale.figures import COLUMNS, Row, floors, paired_ratio, summary
from benchmarks.autoscale.tuning import BUDGET, compare, tune
from benchmarks.report import print_report, print_table
from configs.errors import RecpoolError

SEEDS = (1, 2, 3, 4, 5)


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
