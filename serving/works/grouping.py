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
    search = _Search(target_ms)
    elements = search.largest("move", (2**n for n in range(14, 24)), lambda size: _move_ms(size, clock))
    tower, powers = training.begin_tower(True).trainer, [2**n for n in range(8)]
    of_items, of_users = ("items", "items back"), ("examples", "users", "users back")
    items = search.largest("tower_items", range(256, 4097, 256), lambda n: _tower_ms(tower, 64, 64, n, of_items, clock))
    users = search.largest("tower_users", powers, lambda n: _tower_ms(tower, n, n, items, of_users, clock))
    scored = search.largest("tower_scored", powers, lambda n: _tower_ms(tower, n, n, items, ("score",), clock))
    grouped, valid, parts = {}, 1, options.grouping.ranker_parts
    for name in ("fine", "coarse"):
        fit = training.begin_ranker(name, True)
        grouped[name] = search.largest(name, powers, lambda n, fit=fit: _micro_ms(fit, n, parts, clock))
        if name == "fine":
            valid = search.largest("valid", powers, lambda n, fit=fit: _valid_ms(fit, n, clock))
            fit.finish()
            training.take_ranker("fine", fit.trainer.model.state_dict())
    cut = Grouping(
        tower_users=users,
        tower_scored=min(users, scored),
        tower_items=items,
        fine_groups=grouped["fine"],
        coarse_groups=grouped["coarse"],
        ranker_parts=parts,
        valid_groups=valid,
        piece_elements=elements,
    )
    return cut, {name: round(ms, 3) for name, ms in search.found.items()}


class _Search:
    """Largest sizes that fit, and what they cost."""

    def __init__(self, target_ms: float):
        self._target_ms = target_ms
        self.found: dict[str, float] = {}

    def largest(self, name: str, sizes: Iterable[int], cost_ms: Callable[[int], float]) -> int:
        """The last of rising sizes that fits, or the first where none does."""
        chosen = 0
        for size in sizes:
            ms = cost_ms(size)
            if chosen and ms > self._target_ms:
                break
            chosen, self.found[name] = size, ms
            if ms > self._target_ms:
                break
        return chosen


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


def _tower_ms(
    trainer: TowerTrainer, users: int, scored: int, items: int, kinds: tuple[str, ...], clock: Clock
) -> float:
    """Median of the dearest of some kinds of unit over a whole step."""
    units = TowerUnits(trainer, users, scored, items)
    taken: dict[str, list[float]] = {}
    for _ in range(units.per_step):
        kind, began_s = units.kind, clock()
        units.unit()
        taken.setdefault(kind, []).append((clock() - began_s) * 1000)
    return max(float(np.median(taken[kind])) for kind in kinds)


def _micro_ms(fit: RankerFit, groups: int, parts: bool, clock: Clock) -> float:
    """Median of the dearest part of a micro-step over so many groups."""
    made, data = fit.trainer, fit.data
    schedule = replace(made.schedule, micro=max(1, made.schedule.groups // groups))
    tables = data.users, data.items
    trainer = RankTrainer(made.model, *tables, made.rows, made.recipe, schedule, made.teacher, parts=parts)
    taken: dict[str, list[float]] = {}
    while trainer.step_count <= REPEATS:
        kind, began_s = trainer.kind, clock()
        trainer.unit()
        if trainer.step_count:  # the first one shuffles the rows and warms up
            taken.setdefault(kind, []).append((clock() - began_s) * 1000)
    taken.pop("move", None)
    return max(float(np.median(costs)) for costs in taken.values())


def _valid_ms(fit: RankerFit, groups: int, clock: Clock) -> float:
    data, model = fit.data, fit.trainer.model
    if not len(data.valid):
        return 0.0
    rows = data.scored_rows(data.valid, model.spec.history)
    scoring = Scoring(model, data.users, data.items, rows, groups)
    return _median_ms(lambda: scoring.unit(0), clock)
