"""What callers notice when the pool's controller is killed again and again, and whether its book is right afterwards.

The pool of two emulated devices runs for real, with a fine-tune on it and an open-loop load on the service. The
process of the detached controller gets SIGKILL at random moments; Ray starts another. After each takeover the book is
held against what the actors themselves say: each host its lease and the epoch it obeys, each gate who computes on its
device, the journal its ledger. At the end a second controller is started by hand beside the one that works.
"""

from __future__ import annotations

import random
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayTaskError

from benchmarks.live import Live, live_service
from benchmarks.live_pool import CONTROLLER, ENDLESS, LivePool, await_truth, connected, hosts
from benchmarks.load import COLUMNS, Load, Outcomes, Running, poisson, start
from benchmarks.report import Floor, is_quick, print_report, print_table
from configs.errors import Conflict, Unavailable
from deployments.pool import start_controller
from pool.gate.readings import SlotView
from pool.ledger import Ledger
from pool.runtime.journal import Journal
from pool.runtime.messages import HostStatus
from pool.views import PoolReport, SliceReport

FINETUNE, BY_HAND = "night", "pool-controller-by-hand"
KILLS, QUICK_KILLS = 20, 3
RATE_PER_S = 30.0
BEFORE_S, QUICK_BEFORE_S = 60.0, 15.0
EVERY_S = 12.0
"""From one kill to the next at least: a takeover, and some seconds of work under it."""
RANDOM_S = 1.0
TAKEOVER_S = 60.0
BESIDE_S = 5.0
"""How long the second controller is watched beside the first."""
P99_RATIO = 1.25
"""Of the latency with kills to that before: what restarting a process costs on a machine of two cores."""


@dataclass(frozen=True)
class Kill:
    """One kill. ``wrong``: what the book says otherwise than the actors."""

    takeover_s: float
    epoch: int
    wrong: tuple[str, ...]


def disagreements(
    report: PoolReport, held: Sequence[HostStatus], gates: Mapping[str, Sequence[SlotView]], ledger: Ledger
) -> list[str]:
    """What the controller's book says otherwise than those who hold the leases, in words.

    Args:
        held: what the hosts say of themselves. gates: the members of each device's gate. ledger: as journalled.
    """
    slices = {each.lease: (device.id, each) for device in report.devices for each in device.slices}
    served = {each.name for each in report.workloads if each.kind == "inference"}
    wrong = [f"{status.lease.id}: {why}" for status in held for why in _host_faults(status, slices, report.epoch)]
    hosted = {status.lease.id for status in held}
    wrong += [
        f"{lease}: {each.workload} on {device} has no host"
        for lease, (device, each) in slices.items()
        if each.workload not in served and lease not in hosted
    ]
    for device, members in gates.items():
        for name in served:
            leases = sum(each.workload == name and where == device for where, each in slices.values())
            joined = sum(slot.workload == name for slot in members)
            if leases != joined:
                wrong.append(f"{device}: {leases} leases of {name}, {joined} of it at the gate")
    ledger.check_integrity()
    written = {lease.id: (lease.device, lease.workload, lease.milli) for lease in ledger.leases()}
    told = {lease: (device, each.workload, each.leased_milli) for lease, (device, each) in slices.items()}
    if written != told or ledger.epoch != report.epoch:
        wrong.append(f"the journal has {written} of epoch {ledger.epoch}, the report {told} of {report.epoch}")
    return wrong


def _host_faults(status: HostStatus, slices: Mapping[str, tuple[str, SliceReport]], epoch: int) -> list[str]:
    if status.phase == "ended":
        return []
    if status.lease.id not in slices:
        return [f"held by {status.spec.name}, and not in the book"]
    device, booked = slices[status.lease.id]
    said = (status.lease.device, status.spec.name, status.lease.milli, status.lease.memory_bytes, status.epoch)
    book = (device, booked.workload, booked.leased_milli, booked.memory_bytes, epoch)
    return [] if said == book else [f"its host says {said}, the book {book}"]


def read_ledger(pool: LivePool) -> Ledger:
    """As the controller wrote it last."""
    found = Journal(pool.journal, 0.0).read()
    assert found is not None, "there is no journal"
    return found[0]


def kill_and_compare(pool: LivePool, actors: Executor) -> Kill:
    """Kill the controller's process, wait for the next one to speak, and hold its book against the actors."""
    before = await_truth(pool.report, "a report")
    [process] = pool.live.processes(CONTROLLER)
    killed_s = time.monotonic()
    process.kill()

    def newer() -> PoolReport | None:
        report = pool.report()
        return report if report is not None and report.epoch > before.epoch else None

    await_truth(newer, "a newer controller", TAKEOVER_S)
    takeover_s = time.monotonic() - killed_s
    gates = {device: pool.members(device) for device in pool.devices}
    held, report, ledger = actors.submit(hosts).result(), await_truth(pool.report, "a report"), read_ledger(pool)
    return Kill(takeover_s, report.epoch, tuple(disagreements(report, held, gates, ledger)))


def kill_again_and_again(pool: LivePool, actors: Executor, count: int, running: Running, seed: int) -> list[Kill]:
    """One kill every few seconds while the load runs."""
    moments, kills = random.Random(seed), []
    for place in range(count):
        due_s = running.started_s + 1.0 + place * EVERY_S + moments.uniform(0, RANDOM_S)
        time.sleep(max(0.0, due_s - time.monotonic()))
        kills.append(kill_and_compare(pool, actors))
        print(
            f"kill {place + 1}: the next acted after {kills[-1].takeover_s:.1f} s {kills[-1].wrong or ''}", flush=True
        )
    return kills


def by_hand(pool: LivePool) -> dict[str, Any]:
    """Start a second controller beside the one that works: what it says, and whether the first goes on.

    To be called in a process of the cluster.
    """
    before = await_truth(pool.report, "a report")
    second = start_controller(pool.live.settings, name=BY_HAND)
    try:
        said = _refusal(second)
        time.sleep(BESIDE_S)
        after = await_truth(pool.report, "a report")
        return {
            "said": said,
            "refused": said == _refusal(second) != "",
            "same_epoch": after.epoch == before.epoch,
            "age_s": after.age_s,
        }
    finally:
        ray.kill(second, no_restart=True)


def _refusal(controller: Any) -> str:
    """Why a controller does nothing; empty when it does."""
    try:
        ray.get(controller.workloads.remote(), timeout=TAKEOVER_S)
    except (Unavailable, Conflict, RayTaskError) as error:
        return str(error).splitlines()[-1]
    return ""


def measure(live: Live, kills: int, before_s: float) -> tuple[Outcomes, Outcomes, list[Kill], dict[str, Any]]:
    """The load without a kill, and with them; the kills; and what came of a controller started by hand."""
    pool = LivePool(live)
    pool.submit(FINETUNE, "finetune", **ENDLESS)
    await_truth(lambda: pool.phase(FINETUNE) == "running", "a running fine-tune")
    requests = live.requests(2_000, timeout_ms=1_000)
    load = Load(live.port, requests, poisson(RATE_PER_S, before_s, seed=1), timeout_s=5)
    with connected(live) as actors:
        with start(load) as running:
            before = running.outcomes()
        with start(load.at(poisson(RATE_PER_S, kills * EVERY_S + 5, seed=2))) as running:
            found = kill_again_and_again(pool, actors, kills, running, seed=3)
            during = running.outcomes()
        return before, during, found, actors.submit(by_hand, pool).result()


def report(before: Outcomes, during: Outcomes, kills: list[Kill], hand: dict[str, Any]) -> None:
    calm, shot = before.summary(), during.summary()
    failed = int((during.status != 200).sum())
    takeovers_s = [kill.takeover_s for kill in kills]
    p50_s, longest_s = np.quantile(takeovers_s, (0.5, 1.0)).tolist()
    wrong = [why for kill in kills for why in kill.wrong]
    print_table(("load", *COLUMNS), [("before", *calm.row()), ("with kills", *shot.row())])
    print(f"{len(kills)} kills; another acts after {p50_s:.1f} s, {longest_s:.1f} s at most; {failed} requests failed")
    print(f"a second one by hand: {hand}")
    for why in wrong:
        print(f"WRONG {why}")
    figures = {
        "kills": len(kills),
        "takeover_p50_s": p50_s,
        "takeover_max_s": longest_s,
        "requests": shot.count,
        "failed": failed,
        "p99_before_ms": calm.p99_ms,
        "p99_ms": shot.p99_ms,
        "wrong": wrong,
        "by_hand": hand,
    }
    floors = [
        Floor("requests that failed", failed, 0, "lower"),
        Floor("entries of the book that differ from what the actors hold", len(wrong), 0, "lower"),
        Floor("p99 with kills over p99 before", shot.p99_ms / calm.p99_ms, P99_RATIO, "lower"),
        Floor("a second controller was kept out", float(hand["refused"] and hand["same_epoch"]), 1),
    ]
    print_report("controller_loss", figures, floors, emulated=True)


def main() -> None:
    kills, before_s = (QUICK_KILLS, QUICK_BEFORE_S) if is_quick() else (KILLS, BEFORE_S)
    with live_service("pool") as live:
        found = measure(live, kills, before_s)
    report(*found)


if __name__ == "__main__":
    main()
