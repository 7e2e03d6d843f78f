"""A week's load in a minute, on two devices of which one serves and one trains, and on the same two as a pool.

The load generator shares the devices' cores in all arms alike. Useful work is requests answered in full quality
within 50 ms, and units of training that were kept, each by what it costs undisturbed.
"""

from __future__ import annotations

import asyncio
import gc
import os
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

import numpy as np
import uvloop

from benchmarks.colocation.cells import FULL_QUALITY, calls, capacity_per_s, warm_up
from benchmarks.colocation.device import ONE_THREAD, cores, emulated, gates, home, on_core
from benchmarks.colocation.server import Server, serving
from benchmarks.colocation.trainers import Trainer, trainer
from benchmarks.colocation.works import FINETUNE
from benchmarks.load import Load, Outcomes, fire_async
from benchmarks.pooling.arms import HEADROOM, Division, divisions
from benchmarks.pooling.figures import SLO_MS, Played, floors, summarise
from benchmarks.pooling.trace import arrivals, week
from benchmarks.report import is_quick, print_report, print_table

SECONDS, QUICK_SECONDS = 60.0, 10.0
REPEATS, QUICK_REPEATS = 3, 1
CAPACITY_S, QUICK_CAPACITY_S = 10.0, 2.0
LEAD_S = 0.05
COLUMNS = ("utilisation", "serving", "training", "in_slo", "p50_ms", "p99_ms", "units_per_s")
COLUMNS += ("utilisation_ratio", "p50_ratio", "p99_ratio")


@dataclass(frozen=True)
class Pair:
    """Two devices with a server and a trainer each, which work where an arm wants them."""

    servers: tuple[Server, Server]
    trainers: tuple[Trainer, Trainer]
    requests: Sequence[bytes]

    def play(self, division: Division, times_s: np.ndarray) -> Played:
        """Send the requests that are due at these times, by turns to the devices that serve."""
        with ExitStack() as stack:
            for server, arm in zip(self.servers, division.devices, strict=True):
                server.serve_as(arm)
            running = [
                stack.enter_context(trainer.training(arm))
                for trainer, arm in zip(self.trainers, division.devices, strict=True)
                if arm.manner
            ]
            before = [server.usage() for server in self.servers]
            outcomes = uvloop.run(fire_all(self._loads(division, times_s)))
            after = [server.usage() for server in self.servers]
        tallies = [tally for one in running for tally in one]
        seconds = after[0].at_s - before[0].at_s
        latency_ms = np.concatenate([each.latency_s for each in outcomes]) * 1e3
        full = np.concatenate([each.found for each in outcomes])
        return Played(
            seconds=seconds,
            device_s=seconds * len(self.servers),
            latency_ms=latency_ms,
            good=int(np.count_nonzero(full & (latency_ms <= SLO_MS))),
            asked=len(times_s),
            serving_cpu_s=sum(end.cpu_s - begin.cpu_s for begin, end in zip(before, after, strict=True)),
            training_cpu_s=seconds * sum(tally.cpu_s / tally.seconds for tally in tallies),
            units=round(seconds * sum(tally.per_s for tally in tallies)),
        )

    def _loads(self, division: Division, times_s: np.ndarray) -> list[Load]:
        servers = [server for server, serves in zip(self.servers, division.serves, strict=True) if serves]
        return [
            Load(server.port, self.requests[at:], times_s[at :: len(servers)], timeout_s=5.0, contains=FULL_QUALITY)
            for at, server in enumerate(servers)
        ]


async def fire_all(loads: Sequence[Load]) -> list[Outcomes]:
    """Several loads at once, from one start."""
    started_s = time.monotonic() + LEAD_S
    return list(await asyncio.gather(*(fire_async(load, started_s) for load in loads)))


@contextmanager
def pair() -> Iterator[Pair]:
    """Two emulated devices with all that works on them, until the block ends."""
    devices = [emulated(f"device-{at}", core) for at, core in enumerate((cores()[0], cores()[-1]))]
    with ExitStack() as stack:
        settings = stack.enter_context(home())
        folder = stack.enter_context(gates(*devices))
        servers = [stack.enter_context(serving(settings, folder, device)) for device in devices]
        trainers = [stack.enter_context(trainer(FINETUNE, settings, folder, device)) for device in devices]
        yield Pair((servers[0], servers[1]), (trainers[0], trainers[1]), calls(settings))


def main() -> None:
    os.environ.update(ONE_THREAD)
    gc.freeze()  # a collection of everything imported would look like the server's pause
    seconds, repeats = (QUICK_SECONDS, QUICK_REPEATS) if is_quick() else (SECONDS, REPEATS)
    load, source = week()
    arms, played = divisions(load), defaultdict(list)
    with pair() as both:
        with on_core(cores()[-1]):
            capacity = capacity_per_s(both.servers[0], both.requests, QUICK_CAPACITY_S if is_quick() else CAPACITY_S)
            warm_up(both.servers[1], both.requests)
        print(f"{capacity:.0f} requests/s one at a time fill a device; load: {source}", flush=True)
        for repeat in range(repeats):
            times_s = arrivals(load, HEADROOM * capacity, seconds, seed=repeat)
            for arm in (*arms[repeat % len(arms) :], *arms[: repeat % len(arms)]):
                played[arm.name].append(both.play(arm, times_s))
    report(load, source, capacity, arms, summarise(played))


def report(
    load: np.ndarray, source: str, capacity: float, arms: Sequence[Division], found: dict[str, dict[str, float]]
) -> None:
    """Print table and floors."""
    rows = [(arm.name, arm.serving_milli, *(found[arm.name][name] for name in COLUMNS)) for arm in arms]
    print_table(("devices", "kept for serving, milli", *COLUMNS), rows)
    print()
    figures = {
        "trace": source,
        "mean_over_peak": float(load.mean()),
        "capacity_per_s": capacity,
        "by_arm": {arm.name: {"serving_milli": arm.serving_milli, **found[arm.name]} for arm in arms},
    }
    print_report("pooling", figures, floors(found), emulated=True)


if __name__ == "__main__":
    main()
