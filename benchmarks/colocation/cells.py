"""Measures: the capacity of a server, and one arm at one load."""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass

import numpy as np
import orjson

from benchmarks.colocation.arms import ALONE, Arm
from benchmarks.colocation.figures import Cell, reclaim_ms
from benchmarks.colocation.server import Server, Usage
from benchmarks.colocation.trainers import Tally, Trainer
from benchmarks.load import Load, Outcomes, fire, poisson, post
from configs.settings import Settings
from features.datasets import Dataset
from features.schema import USER_ID

FULL_QUALITY = b'"degraded":[]'
TIMEOUT_MS = 1_000
"""The longest that a request may ask for: an arm that is slow shows it."""
CALLS = 4_000
"""Distinct calls, sent in turn."""
GENTLE_RATE, WARM_UP_S = 40.0, 2.0


@dataclass(frozen=True)
class Effort:
    """How much is measured.

    Attributes:
        capacity_s: of measuring the capacity.
        least_s, requests: of a cell: as long as so many requests take, and no shorter.
        idle_s: of a trainer on an idle device.
    """

    capacity_s: float
    least_s: float
    requests: int
    idle_s: float

    def seconds(self, rate: float) -> float:
        return max(self.least_s, self.requests / rate)


def calls(settings: Settings) -> Sequence[bytes]:
    """Recommend calls for users of the data set, drawn at random."""
    users = Dataset.load(settings.dataset_folder).users.column(USER_ID).to_pylist()
    chosen = np.random.default_rng(0).integers(len(users), size=CALLS)
    return [
        post("/v1/recommend", orjson.dumps({"user_id": users[i], "k": 10, "timeout_ms": TIMEOUT_MS})) for i in chosen
    ]


def warm_up(server: Server, requests: Sequence[bytes]) -> None:
    """Fill caches, and let the server learn what batches cost."""
    server.serve_as(ALONE)
    fire(_load(server, requests, GENTLE_RATE, WARM_UP_S, seed=1))


def capacity_per_s(server: Server, requests: Sequence[bytes], seconds: float) -> float:
    """Requests a second that keep the server's core busy all the time if each is answered by itself.

    By processor time, which other work of the machine hardly changes. Batches make the server faster than that.
    """
    warm_up(server, requests)
    before = server.usage()
    outcomes = fire(_load(server, requests, GENTLE_RATE, seconds, seed=2))
    return float(outcomes.found.sum()) / (server.usage().cpu_s - before.cpu_s)


def idle_units_per_s(trainer: Trainer, arm: Arm, seconds: float) -> float:
    """Units a second of a trainer on a device that serves nobody."""
    with trainer.training(arm) as tallies:
        time.sleep(seconds)
    return tallies[0].per_s


def measure(
    server: Server, trainer: Trainer, arm: Arm, requests: Sequence[bytes], rate: float, seconds: float, seed: int
) -> Cell:
    """One arm at one load."""
    server.serve_as(arm)
    with trainer.training(arm) if arm.manner else nullcontext([]) as tallies:
        before = server.usage()
        outcomes = fire(_load(server, requests, rate, seconds, seed))
        after = server.usage()
    return cell_of(outcomes, before, after, tallies)


def cell_of(outcomes: Outcomes, before: Usage, after: Usage, tallies: Sequence[Tally]) -> Cell:
    full = outcomes.found
    sent_s = (outcomes.started_s + outcomes.scheduled_s + outcomes.lag_s)[full]
    received_s = (outcomes.started_s + outcomes.scheduled_s + outcomes.latency_s)[full]
    return Cell(
        latency_ms=outcomes.latency_s * 1e3,
        full=float(full.mean()),
        serving_busy=(after.cpu_s - before.cpu_s) / (after.at_s - before.at_s),
        reclaim_ms=reclaim_ms(after.batches, sent_s, received_s),
        units_per_s=sum(tally.per_s for tally in tallies),
    )


def _load(server: Server, requests: Sequence[bytes], rate: float, seconds: float, seed: int) -> Load:
    return Load(server.port, requests, poisson(rate, seconds, seed), timeout_s=5.0, contains=FULL_QUALITY)
