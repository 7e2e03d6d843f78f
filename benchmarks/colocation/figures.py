"""What cells say: latency, how soon inference got the device, and how much of what it left became training."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.colocation.arms import AGAIN, ALONE, NAIVE, RECPOOL
from benchmarks.report import Floor

QUANTILES = {"p50": 0.5, "p99": 0.99, "p999": 0.999}
PROMISED_LOAD = 0.6
"""Floors hold for loads up to this."""
P99_RATIO, IDLE_USED, RECLAIM_MS = 1.25, 0.7, 5.0


@dataclass(frozen=True)
class Cell:
    """One arm at one load, once.

    Attributes:
        latency_ms: [N] of all requests, those given up included, from when they were due.
        full: share of all requests that were answered in full quality.
        serving_busy: processor time of the serving process over the time there was.
        reclaim_ms: [M] from a request's arrival at an idle service to the start of its batch.
        units_per_s: of training; 0 without a trainer.
    """

    latency_ms: np.ndarray
    full: float
    serving_busy: float
    reclaim_ms: np.ndarray
    units_per_s: float

    def quantile_ms(self, name: str) -> float:
        return quantile(self.latency_ms, QUANTILES[name])


@dataclass(frozen=True)
class Place:
    """Where a cell stands: the trainer's kind, the load as a share of capacity, the arm's name."""

    trainer: str
    load: float
    arm: str


def quantile(values: np.ndarray, q: float) -> float:
    return float(np.quantile(values, q)) if len(values) else float("nan")


def reclaim_ms(batches_ns: np.ndarray, sent_s: np.ndarray, received_s: np.ndarray) -> np.ndarray:
    """Milliseconds from arrival to batch of the requests that found no batch running.

    A request was in the batch that was the last to end before its answer arrived. One that came while a batch ran
    waited for its like, which it would have done on any device; these are left out.

    Args:
        batches_ns: int64 [N, 2], begin and end of each batch, in order.
        sent_s, received_s: float64 [R], of each answered request; all three on one monotonic clock.
    """
    if not len(batches_ns) or not len(sent_s):
        return np.empty(0)
    begun_s, ended_s = batches_ns.T / 1e9
    own = np.searchsorted(ended_s, received_s, side="right") - 1
    free_s = np.concatenate([[-np.inf], ended_s])[own]
    found_idle = (own >= 0) & (sent_s >= free_s) & (sent_s <= begun_s[own])
    return (begun_s[own] - sent_s)[found_idle] * 1e3


def summarise(cells: Mapping[Place, Sequence[Cell]], idle_units_per_s: Mapping[str, float]) -> dict[Place, dict]:
    """Figures by place, medians over its repeats.

    Ratios are to the mean of the two arms without a trainer in the same repeat. `idle_used` is the trainer's rate
    over its rate on a device of its own times the share of the device that serving leaves when it is alone.

    Args:
        idle_units_per_s: of each trainer, on the idle device and asking nobody.
    """
    found = {}
    for place, repeats in cells.items():
        rows = []
        for at, cell in enumerate(repeats):
            alone = [cells[Place(place.trainer, place.load, name)][at] for name in (ALONE.name, AGAIN.name)]
            rows.append(_row(cell, alone, idle_units_per_s[place.trainer], place.arm))
        found[place] = {name: statistics.median(row[name] for row in rows) for name in rows[0]}
    return found


def _row(cell: Cell, alone: Sequence[Cell], idle_units_per_s: float, arm: str) -> dict[str, float]:
    idle = 1 - statistics.mean(each.serving_busy for each in alone)
    base = alone[:1] if arm == AGAIN.name else alone
    ratios = {f"{q}_ratio": cell.quantile_ms(q) / statistics.mean(b.quantile_ms(q) for b in base) for q in QUANTILES}
    return {
        **{f"{q}_ms": cell.quantile_ms(q) for q in QUANTILES},
        **ratios,
        "full": cell.full,
        "idle": idle,
        "idle_used": cell.units_per_s / (idle_units_per_s * idle),
        "units_per_s": cell.units_per_s,
        "reclaim_p50_ms": quantile(cell.reclaim_ms, 0.5),
        "reclaim_p99_ms": quantile(cell.reclaim_ms, 0.99),
    }


def of_arm(found: Mapping[Place, dict[str, float]], arm: str, name: str) -> list[float]:
    """A figure of an arm with every trainer at the loads that floors are for."""
    return [row[name] for place, row in found.items() if place.arm == arm and place.load <= PROMISED_LOAD + 1e-9]


def floors(found: Mapping[Place, dict[str, float]], lost_units: Iterable[int]) -> list[Floor]:
    """The worst of every trainer and load, held against what is promised."""
    return [
        Floor("p99 over alone, worst", max(of_arm(found, RECPOOL.name, "p99_ratio")), P99_RATIO, "lower"),
        Floor("idle capacity turned into steps, least", min(of_arm(found, RECPOOL.name, "idle_used")), IDLE_USED),
        Floor("reclaim p99, ms, worst", max(of_arm(found, RECPOOL.name, "reclaim_p99_ms")), RECLAIM_MS, "lower"),
        Floor("units of training lost", float(max(lost_units)), 0.0, "lower"),
    ]


def noise(found: Mapping[Place, dict[str, float]]) -> dict[str, float]:
    """What no trainer explains, the second arm alone over the first; and what a trainer costs without any care."""
    again, naive = of_arm(found, AGAIN.name, "p99_ratio"), of_arm(found, NAIVE.name, "p99_ratio")
    return {
        "p99_again_over_alone_least": min(again),
        "p99_again_over_alone_most": max(again),
        "p99_naive_over_alone_most": max(naive),
    }


def by_name(found: Mapping[Place, dict[str, float]]) -> dict[str, Any]:
    """Nested for a report: trainer, load, arm."""
    nested: dict[str, Any] = {}
    for place, row in found.items():
        nested.setdefault(place.trainer, {}).setdefault(f"{place.load:g}", {})[place.arm] = row
    return nested
