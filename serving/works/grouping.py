"""How fine training must be cut on this machine, from measurement."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from configs.settings import Settings
from pool.engines.split_adam import SplitAdam
from pool.engines.threads import pin_threads
from ranking.pipeline import RankerFit
from ranking.scoring import Scoring
from ranking.training import RankTrainer
from recall.tower_units import TowerUnits
from recall.training import TowerTrainer
from serving.works.options import FinetuneOptions, Grouping
from serving.works.sources import Source
from serving.works.training import Training

TARGET_MS = 5.0
REPEATS = 7

Clock = Callable[[], float]


def propose_grouping(
    dataset: Source,
    settings: Settings,
    options: FinetuneOptions,
    target_ms: float = TARGET_MS,
    clock: Clock = time.thread_time,
) -> tuple[Grouping, dict[str, float]]:
    """The coarsest cut whose units take up to ``target_ms``, or the finest one, by running some of each kind.

    Takes some seconds, most of them to read and encode the dataset.

    Args:
        clock: seconds. The default counts what this thread computes, whoever else is on the machine, and so
            fits one thread only.
    Returns:
        the cut, and the median milliseconds of each kind of unit under it.
    """
    pin_threads(options.threads)
    training = Training(dataset, settings, options, Path())
    for _, task in training.reading():
        task()
    found: dict[str, float] = {}

    def best(name: str, sizes: Iterable[int], cost_ms: Callable[[int], float]) -> int:
        """The last of rising sizes that fits."""
        chosen = 0
        for size in sizes:
            ms = cost_ms(size)
            if chosen and ms > target_ms:
                break
            chosen, found[name] = size, ms
            if ms > target_ms:
                break
        return chosen

    elements = best("move", (2**n for n in range(14, 24)), lambda size: _move_ms(size, clock))
    tower = training.begin_tower(True).trainer
    items = best(
        "tower_items", (256, 512, 1024, 2048, 4096), lambda n: _tower_ms(tower, 64, n, ("items", "back"), clock)
    )
    users = best("tower_users", (1, 2, 4, 8, 16, 32, 64, 128), lambda n: _tower_ms(tower, n, items, ("users",), clock))
    micro, valid = {}, 1
    for name in ("fine", "coarse"):
        fit = training.begin_ranker(name, True)
        groups = best(name, (1, 2, 4, 8, 16, 32, 64, 128), lambda n, fit=fit: _micro_ms(fit, n, clock))
        micro[name] = max(1, fit.trainer.schedule.groups // groups)
        if name == "fine":
            valid = best("valid", (1, 2, 4, 8, 16, 32, 64), lambda n, fit=fit: _valid_ms(fit, n, clock))
            fit.finish()
            training.take_ranker("fine", fit.trainer.model.state_dict())
    cut = Grouping(
        tower_users=users,
        tower_items=items,
        fine_micro=micro["fine"],
        coarse_micro=micro["coarse"],
        valid_groups=valid,
        piece_elements=elements,
    )
    return cut, {name: round(ms, 3) for name, ms in found.items()}


def _median_ms(work: Callable[[], None], clock: Clock, repeats: int = REPEATS) -> float:
    """Of some calls after the first, which warms up."""
    taken = []
    for _ in range(repeats + 1):
        began_s = clock()
        work()
        taken.append((clock() - began_s) * 1000)
    return float(np.median(taken[1:]))


def _move_ms(elements: int, clock: Clock) -> float:
    weights = torch.zeros(elements)
    weights.grad = torch.ones(elements)
    adam = SplitAdam([([weights], 0.0)], 1e-3, elements)
    return _median_ms(lambda: adam.move(0, 1e-3), clock)


def _tower_ms(trainer: TowerTrainer, users: int, items: int, kinds: tuple[str, ...], clock: Clock) -> float:
    """Median of the dearest of some kinds of unit over a whole step."""
    units = TowerUnits(trainer, users, items)
    taken: dict[str, list[float]] = {}
    for _ in range(units.per_step):
        kind, began_s = units.kind, clock()
        units.unit()
        taken.setdefault(kind, []).append((clock() - began_s) * 1000)
    return max(float(np.median(taken[kind])) for kind in kinds)


def _micro_ms(fit: RankerFit, groups: int, clock: Clock) -> float:
    """Of a micro-step over so many groups."""
    made = fit.trainer
    schedule = replace(made.schedule, micro=max(1, made.schedule.groups // groups))
    data = fit.data
    trainer = RankTrainer(made.model, data.users, data.items, made.rows, made.recipe, schedule, made.teacher)
    taken = []
    for _ in range(REPEATS + 1):
        began_s = clock()
        trainer.unit()
        taken.append((clock() - began_s) * 1000)
        while trainer.moving:
            trainer.unit()
    return float(np.median(taken[1:]))


def _valid_ms(fit: RankerFit, groups: int, clock: Clock) -> float:
    data, model = fit.data, fit.trainer.model
    if not len(data.valid):
        return 0.0
    rows = data.scored_rows(data.valid, model.spec.history)
    scoring = Scoring(model, data.users, data.items, rows, groups)
    return _median_ms(lambda: scoring.unit(0), clock)
