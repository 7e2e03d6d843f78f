"""Whether a service grows: resident memory of every replica, and Ray's object store, over a long load.

Callers arrive at random at a fixed rate. Memory of each process (unique pages: what would come back if it
ended) is sampled every few seconds; after the first quarter, in which caches and arenas fill, a line is
laid through the rest. Its slope is stated in MB per 100,000 requests, for each process and in all.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np

from benchmarks.live import CONTROLLER, HAPROXY_MANAGER, Live, live_service, resident_bytes
from benchmarks.load import Load, poisson, start
from benchmarks.report import Floor, is_quick, print_report, print_table
from deployments.cluster import OBJECT_STORE_BYTES, Cluster

REQUESTS, QUICK_REQUESTS = 200_000, 3_000
RATE = 220.0
"""Requests/s: moderate, so that the load takes no longer than it must and nothing is refused."""
SAMPLE_S, QUICK_SAMPLE_S = 5.0, 0.5
WARM_UP = 0.25
"""Share of the requests before the slope is taken."""
FLAT_MB = 5.0
"""MB per 100,000 requests, all replicas together, up to which memory counts as flat: 50 bytes a request."""
STORE_MB = 1.0
"""What Ray's object store may differ by: 5 bytes a request."""
MB = 1e6


@dataclass(frozen=True)
class Growth:
    """One process, or all: MB at the first sample, after the warm-up and at the end; the slope after the warm-up."""

    process: str
    first_mb: float
    warm_mb: float
    last_mb: float
    mb_per_100k: float


def sampled(live: Live, load: Load, every_s: float) -> tuple[dict[str, np.ndarray], np.ndarray, dict[int, int]]:
    """Bytes of each process at each sample, how many requests had been sent by then, and the answers by status."""
    processes = {f"{_short(p.cmdline()[0])} {p.pid}": p for p in watched(live)}
    samples: dict[str, list[int]] = {name: [] for name in processes}
    sent = []
    with start(load) as running:
        end_s = running.started_s + load.times_s[-1]
        while time.monotonic() < end_s:
            sent.append(int(np.searchsorted(load.times_s, time.monotonic() - running.started_s)))
            for name, process in processes.items():
                samples[name].append(resident_bytes(process))
            time.sleep(every_s)
        statuses = running.outcomes().summary().statuses
    return {name: np.array(sizes) for name, sizes in samples.items()}, np.array(sent), statuses


def watched(live: Live) -> list:
    """Every process that serves or steers: replicas, HAProxy, its manager, the controller."""
    return [*live.replicas(), *live.haproxy(), *live.processes(HAPROXY_MANAGER), *live.processes(CONTROLLER)]


def growth(name: str, sizes: np.ndarray, sent: np.ndarray) -> Growth:
    """The least-squares line through the samples after the warm-up.

    Args:
        sizes: bytes, [S]. sent: requests, [S].
    """
    warm = sent >= WARM_UP * sent[-1]
    slope = float(np.polyfit(sent[warm], sizes[warm], 1)[0]) if warm.sum() > 2 else float("nan")
    return Growth(name, sizes[0] / MB, float(sizes[warm][0]) / MB, sizes[-1] / MB, slope * 100_000 / MB)


def object_store_bytes(live: Live) -> float:
    """Used by objects in Ray's store, over all nodes."""
    shell = Cluster(live.home).folders.shell
    command = f". {shell} && {Path(sys.executable).parent}/ray memory --stats-only"
    said = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120).stdout
    return used_bytes(said)


def used_bytes(said: str) -> float:
    """What ``ray memory --stats-only`` says is used, to 0.01% of the store. Raises ValueError when it does not."""
    found = re.search(r"Plasma memory usage .*? ([\d.]+)% full", said)
    if found is None:
        raise ValueError(f"`ray memory` said nothing of its store: {said[-500:]!r}")
    return float(found[1]) / 100 * OBJECT_STORE_BYTES


def _short(title: str) -> str:
    return title.removeprefix("ray::").removeprefix("ServeReplica:recpool:").split("/")[-1]


def main() -> None:
    count, every_s = (QUICK_REQUESTS, QUICK_SAMPLE_S) if is_quick() else (REQUESTS, SAMPLE_S)
    times = poisson(RATE, count / RATE * 1.05 + 5, seed=3)[:count]
    with live_service(sys.argv[1] if len(sys.argv) > 1 else "default") as live:
        load = Load(live.port, live.requests(5_000), times, timeout_s=5)
        store_before = object_store_bytes(live)
        sizes, sent, statuses = sampled(live, load, every_s)
        store_after = object_store_bytes(live)
    rows = [growth(name, each, sent) for name, each in sizes.items()]
    total = growth("all", np.sum(list(sizes.values()), axis=0), sent)
    print_table(
        ("process", "MB at first", "after warm-up", "at the end", "MB per 100k requests"),
        [tuple(asdict(row).values()) for row in [*rows, total]],
    )
    print(f"Ray's object store: {store_before / MB:.3f} MB before, {store_after / MB:.3f} MB after")
    figures = {
        "requests": count,
        "statuses": {str(status): number for status, number in statuses.items()},
        "processes": [asdict(row) for row in rows],
        "total": asdict(total),
        "object_store_bytes": {"before": store_before, "after": store_after},
    }
    floors = [
        Floor("MB per 100,000 requests after the warm-up", total.mb_per_100k, FLAT_MB, "lower"),
        Floor("MB that Ray's object store grew by", (store_after - store_before) / MB, STORE_MB, "lower"),
    ]
    print_report("soak", figures, floors)


if __name__ == "__main__":
    main()
