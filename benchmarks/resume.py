"""Whether a fine-tune that is preempted, killed or moved ends with the same bits, and how much work a kill costs.

The workload is the pool's own fine-tune of recall and both rankers on made data. It runs in host processes as under
the controller: behind a gate, on cores of its own, with checkpoints every few seconds; only Ray is left out. One
run is left alone. Three others are interrupted at 20 random points each, and each time a new process goes on:

    preempted   by an order to the host and by a command at the gate in turn; it saves itself and leaves
    killed      with SIGKILL, whatever it does at the time
    migrated    preempted, and goes on behind the gate of another device, of another core

Every checkpoint that a process went on from is compared, tensor by tensor, with what one more uninterrupted run holds
after as many units, and at the end the files of all releases. A point counts as equal when what it was resumed from
is, and what came next: the checkpoint of the next point, or the release.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

# One core: numerical libraries read these when they load, in the processes started from here too.
os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1")

import numpy as np  # noqa: E402
import torch  # noqa: E402

from benchmarks.report import Floor, is_quick, print_report, print_table  # noqa: E402
from benchmarks.resume_hosts import (  # noqa: E402
    HostProcess,
    Unit,
    log_bytes,
    made_dataset,
    placed,
    processes,
    read_log,
    replay,
)
from configs.settings import build_settings  # noqa: E402
from pool import checkpoints  # noqa: E402
from pool.device import Device, Topology  # noqa: E402
from pool.gate.control import GateControl  # noqa: E402
from pool.gate.segment import GateSegment  # noqa: E402
from pool.lease import Lease  # noqa: E402
from pool.repository import ReleaseRepository  # noqa: E402
from pool.runtime.messages import Factory, HostOrder  # noqa: E402
from pool.workload import WorkloadSpec  # noqa: E402
from serving.works.finetune import DRAFT, KIND  # noqa: E402
from serving.works.saved import Saved, read_state  # noqa: E402

WAYS = ("preempted", "killed", "migrated")
POINTS, QUICK_POINTS = 20, 5
USERS, ITEMS, EVENTS = 400, 600, 60
QUICK_USERS, QUICK_ITEMS, QUICK_EVENTS = 80, 200, 40
CHECKPOINT_S, QUICK_CHECKPOINT_S = 2.0, 1.0
NEVER_S = 86_400.0
EPOCH = 1
NAME = "nightly"
TRAINING = "training"
LONGEST_MS = 5.0


@dataclass(frozen=True)
class Point:
    """One interruption.

    Attributes:
        aim: units after which it was to come. saved: units of the checkpoint that the next process went on from.
        lost, lost_s: units, and seconds of device time, that had to be done again.
        checkpoint: a copy of it; None where there was none yet, so that the next process began anew.
        resume_s: from the start of the next process until it did its first unit.
    """

    aim: int
    saved: int
    lost: int
    lost_s: float
    checkpoint: Path | None
    resume_s: float


@dataclass(frozen=True)
class Run:
    """One fine-tune from its beginning to its end, over as many processes as that took."""

    version: str
    points: tuple[Point, ...]
    folder: Path


def main() -> None:
    points = QUICK_POINTS if is_quick() else POINTS
    interval_s = QUICK_CHECKPOINT_S if is_quick() else CHECKPOINT_S
    with tempfile.TemporaryDirectory(prefix="recpool-resume-") as folder, Bench(Path(folder), interval_s) as bench:
        alone = bench.run("alone", ())
        log = read_log(alone.folder)
        done, rng = [unit.done for unit in log], np.random.default_rng(0)
        aims = {way: np.sort(rng.choice(done[:-1], points, replace=False)).tolist() for way in WAYS}
        runs = {way: bench.run(way, aims[way]) for way in WAYS}
        again = bench.again({point.saved for run in runs.values() for point in run.points if point.checkpoint})
        releases = {name: bench.files(version) for name, version in bench.versions.items()}
        equal = {way: count_equal(runs[way], again, releases[way] == releases["alone"]) for way in WAYS}
        assert releases["again"] == releases["alone"], "two uninterrupted runs differ: nothing can be said"
    units = unit_costs(log)
    print_table(
        ("part", "units", "p50 ms", "p99 ms", "max ms"), [(name, *cost.values()) for name, cost in units.items()]
    )
    print()
    arms = {way: figures(runs[way], equal[way], interval_s) for way in WAYS}
    print_table(("way", *arms["killed"]), [(way, *arm.values()) for way, arm in arms.items()])
    print()
    longest_ms = max(cost["p99_ms"] for name, cost in units.items() if name.startswith(TRAINING))
    print_report(
        "resume",
        {"interval_s": interval_s, "units": units, "arms": arms, "cores": bench.cores},
        [
            *(Floor(f"{way}_equal_of_{points}", equal[way], points) for way in WAYS),
            Floor("lost_over_interval", max(arm["lost_over_interval"] for arm in arms.values()), 1.0, "lower"),
            Floor("training_unit_p99_ms", longest_ms, LONGEST_MS, "lower"),
        ],
        emulated=True,
    )


class Bench:
    """A home with a dataset, two emulated devices with their gates, and the runs on them."""

    def __init__(self, home: Path, interval_s: float):
        cores = sorted(os.sched_getaffinity(0))
        self.cores = [cores[-1], cores[0]]
        self._home, self._interval_s, self._context = home, interval_s, processes()
        self._settings = build_settings({"home": home, "dataset": "resume"})
        size = (QUICK_USERS, QUICK_ITEMS, QUICK_EVENTS) if is_quick() else (USERS, ITEMS, EVENTS)
        made_dataset(*size).save(self._settings.dataset_folder)
        self._devices = [
            Device(f"gpu-{n}", "gpu", 1 << 30, Topology("local"), (core,), emulated=True)
            for n, core in enumerate(self.cores)
        ]
        self.versions: dict[str, str] = {}

    def __enter__(self) -> Bench:
        self._gates = Path(tempfile.mkdtemp(prefix="recpool-resume-", dir="/dev/shm"))
        segments = [GateSegment.create(self._gates, device) for device in self._devices]
        self._controls = [GateControl(segment, EPOCH) for segment in segments]
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._gates)

    def run(self, way: str, aims: Sequence[int]) -> Run:
        """One fine-tune, interrupted after so many units each."""
        order = placed(self._order(), self._home / way)
        if not aims:
            order = replace(order, checkpoint_s=NEVER_S)
        order.folder.mkdir()
        host, points = HostProcess(self._context, order), []
        for place, aim in enumerate(aims):
            begun = log_bytes(order.folder)
            if host.wait(aim).phase == "ended":
                break  # sooner than it could be interrupted
            self._interrupt(way, place, host, order)
            if way == "migrated":
                order = replace(order, device=self._devices[(place + 1) % 2])
            found = self._kept(order.folder, place)
            start_s, ended = time.monotonic(), log_bytes(order.folder)
            host = HostProcess(self._context, order)
            while log_bytes(order.folder) == ended:
                time.sleep(0.002)
            own = read_log(order.folder, begun, ended)
            points.append(measured(aim, found, own, time.monotonic() - start_s))
        status = host.end()
        assert status.end == "succeeded", status
        self.versions[way] = status.result["version"]
        return Run(status.result["version"], tuple(points), order.folder)

    def _interrupt(self, way: str, place: int, host: HostProcess, order: HostOrder) -> None:
        if way == "killed":
            host.kill()
            return
        if place % 2:
            self._controls[self._devices.index(order.device)].command(NAME, "yield")
        else:
            host.preempt(EPOCH)
        status = host.end()
        assert status.end == "preempted", status

    def _kept(self, folder: Path, place: int) -> Path | None:
        """A copy of the newest checkpoint, which later ones push out."""
        newest = checkpoints.latest(folder / "checkpoints")
        if newest is None:
            return None
        copy = folder / "kept" / f"{place:02d}"
        return Path(shutil.copytree(newest, copy, copy_function=os.link))

    def again(self, stops: set[int]) -> Mapping[int, Path]:
        """What an uninterrupted run holds after so many units."""
        order = placed(self._order(), self._home / "again")
        saved = {stop: order.folder / "saved" / str(stop) for stop in stops}
        self.versions["again"] = replay(self._context, order, saved)["version"]
        return {stop: path for stop, folder in saved.items() if (path := checkpoints.latest(folder)) is not None}

    def files(self, version: str) -> dict[str, str]:
        """Checksums of a release's files."""
        manifest = ReleaseRepository(self._settings.releases_folder).verify(version)
        return {name: entry.sha256 for name, entry in manifest.files.items()}

    def _order(self) -> HostOrder:
        options = {"epochs": 1}
        spec = WorkloadSpec.model_validate({"name": NAME, "kind": "finetune", "model": "all", "options": options})
        return HostOrder(
            EPOCH,
            Lease("1-1", NAME, self._devices[0].id, 300, 0, EPOCH),
            spec,
            self._devices[0],
            None,
            self._gates,
            self._home,
            Factory("benchmarks.resume_hosts:make_logged", (self._settings, self._home)),
            self._interval_s,
        )


def measured(aim: int, checkpoint: Path | None, own: Sequence[Unit], resume_s: float) -> Point:
    """The point at which a process with these units in its log was interrupted."""
    saved = int(state_of(checkpoint).values["done"]) if checkpoint else 0
    lost = [unit for unit in own if unit.done > saved]
    return Point(aim, saved, len(lost), sum(unit.took_ns for unit in lost) / 1e9, checkpoint, resume_s)


def state_of(checkpoint: Path) -> Saved:
    return read_state(checkpoint, KIND)


def count_equal(run: Run, again: Mapping[int, Path], same_release: bool) -> int:
    """Points that were resumed from the bits of the uninterrupted run, and led to its bits."""
    same = [point.checkpoint is None or is_same(point.checkpoint, again[point.saved]) for point in run.points]
    return sum(before and after for before, after in zip(same, [*same[1:], same_release], strict=True))


def is_same(one: Path, other: Path) -> bool:
    """Whether two checkpoints hold the same tensors, values and files, bit for bit."""
    a, b = state_of(one), state_of(other)
    values = [{name: value for name, value in saved.values.items() if name != "id"} for saved in (a, b)]
    files = [{path.relative_to(root): path.read_bytes() for path in (root / DRAFT).rglob("*") if path.is_file()}
             for root in (one, other)]  # fmt: skip
    return values[0] == values[1] and files[0] == files[1] and flat(a.tensors) == flat(b.tensors)


def flat(tree: Any, name: str = "") -> dict[str, Any]:
    """Leaves of nested lists and dicts by their path; tensors as shape, type and bytes."""
    if isinstance(tree, Mapping | list | tuple):
        pairs = tree.items() if isinstance(tree, Mapping) else enumerate(tree)
        return {path: leaf for key, value in pairs for path, leaf in flat(value, f"{name}/{key}").items()}
    if isinstance(tree, torch.Tensor):
        return {name: (tuple(tree.shape), tree.dtype, tree.numpy().tobytes())}
    return {name: repr(tree)}


def unit_costs(log: Sequence[Unit]) -> dict[str, dict[str, float]]:
    """Milliseconds of device time that units took, by part; the first of a part sets it up and is left out."""
    parts: dict[str, list[float]] = {}
    for unit in log:
        parts.setdefault(unit.doing, []).append(unit.took_ns / 1e6)
    return {
        name: {
            "units": len(took),
            **dict(zip(("p50_ms", "p99_ms", "max_ms"), np.quantile(took, (0.5, 0.99, 1)), strict=True)),
        }
        for name, (_, *rest) in parts.items()
        for took in [rest or parts[name]]
    }


def figures(run: Run, equal: int, interval_s: float) -> dict[str, Any]:
    points = run.points
    return {
        "points": len(points),
        "equal": equal,
        "lost_units_max": max(point.lost for point in points),
        "lost_s_max": max(point.lost_s for point in points),
        "lost_over_interval": max(point.lost_s for point in points) / interval_s,
        "resume_s_p50": float(np.median([point.resume_s for point in points])),
    }


if __name__ == "__main__":
    main()
