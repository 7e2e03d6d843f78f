"""Inference and training on one emulated device, in seven ways, at loads of 20% to 80% of what inference alone takes.

Latency counts from the time a request was due, over HTTP; arms are run in turns, and ratios are to the arms without a
trainer of the same turn. Idle capacity is what the serving process leaves of its core when it is alone.
"""

from __future__ import annotations

import gc
import os
import statistics
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.colocation.arms import ARMS, NAIVE, RECPOOL, Arm
from benchmarks.colocation.cells import Effort, calls, capacity_per_s, idle_units_per_s, measure
from benchmarks.colocation.device import ONE_THREAD, cores, emulated, gates, home, on_core
from benchmarks.colocation.figures import Cell, Place, by_name, floors, noise, summarise
from benchmarks.colocation.server import Server, serving
from benchmarks.colocation.trainers import Trainer, trainer
from benchmarks.colocation.works import KINDS
from benchmarks.report import is_quick, print_report, print_table

LOADS, QUICK_LOADS = (0.2, 0.4, 0.6, 0.8), (0.3, 0.6)
REPEATS, QUICK_REPEATS = 3, 1
FULL, QUICK = Effort(10.0, 4.0, 600, 4.0), Effort(2.0, 0.8, 0, 1.0)
SHOWN = ("p50_ms", "p99_ms", "p50_ratio", "p99_ratio", "p999_ratio", "full", "idle", "idle_used", "reclaim_p50_ms")
SHOWN += ("reclaim_p99_ms",)


@dataclass
class Found:
    """What was measured: cells by place; by trainer, units/s on the idle device in two manners, and units lost."""

    cells: dict[Place, list[Cell]] = field(default_factory=lambda: defaultdict(list))
    free_per_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    gated_per_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    lost_units: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Bench:
    """One server, what it is asked, and how much is measured."""

    server: Server
    requests: Sequence[bytes]
    capacity_per_s: float
    effort: Effort
    loads: Sequence[float]
    repeats: int
    found: Found = field(default_factory=Found)

    def beside(self, kind: str, train: Trainer) -> None:
        """All arms with one trainer, in turns."""
        found, seconds = self.found, self.effort.idle_s
        for repeat in range(self.repeats):
            found.free_per_s[kind].append(idle_units_per_s(train, NAIVE, seconds))
            found.gated_per_s[kind].append(idle_units_per_s(train, RECPOOL, seconds))
            first = repeat % len(ARMS)
            for load in self.loads:
                for arm in (*ARMS[first:], *ARMS[:first]):
                    cell = self.cell(train, arm, load, repeat)
                    say(f"{kind}, {load:.0%}, {arm.name}: p99 {cell.quantile_ms('p99'):.1f} ms")
                    found.cells[Place(kind, load, arm.name)].append(cell)
        found.lost_units[kind] = train.lost_units()

    def cell(self, train: Trainer, arm: Arm, load: float, repeat: int) -> Cell:
        rate = load * self.capacity_per_s
        return measure(self.server, train, arm, self.requests, rate, self.effort.seconds(rate), seed=100 + repeat)


def main() -> None:
    os.environ.update(ONE_THREAD)
    gc.freeze()  # a collection of everything imported would look like the server's pause
    effort, loads, repeats = (QUICK, QUICK_LOADS, QUICK_REPEATS) if is_quick() else (FULL, LOADS, REPEATS)
    first, last = cores()[0], cores()[-1]
    device = emulated("device-0", last)
    with home() as settings, gates(device) as folder, on_core(first), serving(settings, folder, device) as server:
        requests = calls(settings)
        bench = Bench(server, requests, capacity_per_s(server, requests, effort.capacity_s), effort, loads, repeats)
        print(f"capacity: {bench.capacity_per_s:.0f} requests/s one at a time fill the core", flush=True)
        for kind in KINDS:
            with trainer(kind, settings, folder, device) as train:
                bench.beside(kind, train)
    report(bench.capacity_per_s, bench.found)


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def report(capacity_per_s: float, found: Found) -> None:
    """Print tables and floors."""
    idle = {kind: statistics.median(rates) for kind, rates in found.free_per_s.items()}
    gated = {kind: statistics.median(rates) / idle[kind] for kind, rates in found.gated_per_s.items()}
    rows = summarise(found.cells, idle)
    for kind in KINDS:
        print(
            f"\nbeside {kind}: {idle[kind]:.4g} units/s on a device of its own, {gated[kind]:.3f} of that at the gate"
        )
        print_table(
            ("load", "arm", *SHOWN),
            [(p.load, p.arm, *(row[name] for name in SHOWN)) for p, row in rows.items() if p.trainer == kind],
        )
    print()
    figures = {
        "capacity_per_s": capacity_per_s,
        "units_per_s_on_an_idle_device": idle,
        "at_the_gate_of_that": gated,
        "lost_units": found.lost_units,
        "noise": noise(rows),
        "by_trainer_load_arm": by_name(rows),
    }
    print_report("colocation", figures, floors(rows, found.lost_units.values()), emulated=True)


if __name__ == "__main__":
    main()
