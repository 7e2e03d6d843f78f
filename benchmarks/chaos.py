"""What callers notice while parts of a running service are killed, one every few seconds, under open-loop load.

For each plan a service of its own is brought up. Callers arrive at random at a fixed share of what it
sustains, and do not retry. Meanwhile processes get SIGKILL in turn: a replica of a stage, a replica of the
gateway, Serve's controller. A replica is killed when another of its deployment runs: where all are gone
nothing can answer but the degraded rest, which is another question. Deadline: what the calls ask for.
Under the plan `pool` two emulated devices are shared with a fine-tune and a warm-up; there the pool's own controller,
its agent and the hosts of that work are killed in turn as well, and what became of the work is told.

Then HAProxy itself is killed, again and again, under a load whose callers do not retry, and one whose callers
retry once.
"""

from __future__ import annotations

import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, astuple, dataclass, field, replace
from typing import Any

import numpy as np

from benchmarks import live_pool
from benchmarks.live import CONTROLLER, Live, live_service
from benchmarks.live_pool import ENDLESS, LivePool, await_truth
from benchmarks.load import Load, Outcomes, best_rate, poisson, start
from benchmarks.report import Floor, is_quick, print_report, print_table

DEADLINE_MS = 1_000
SHARE_OF_CAPACITY = 0.4
POOL = "pool"
PLANS = ("split", POOL, "default")
REQUESTS, QUICK_REQUESTS = 50_000, 1_000
"""For each plan."""
KILL_EVERY_S = 4.0
PROBE_S, QUICK_PROBE_S = 5.0, 2.0
SETTLE_S = 20.0
"""Longest wait until everything that was killed runs again."""
HAPROXY_KILLS, QUICK_HAPROXY_KILLS = 5, 1
HAPROXY_WATCH_S, HAPROXY_RATE = 20.0, 20.0
RETRY_AFTER_S = 0.25
SINGLES = {"controller": CONTROLLER}
POOL_SINGLES = {"pool's controller": live_pool.CONTROLLER, "agent": live_pool.AGENT, "host": live_pool.HOST_PROCESS}
WORKS = {"night": ("finetune", ENDLESS), "warm": ("warmup", {"model": "release", "tier": ["gpu"], "min_milli": 200})}
"""Submitted under the plan `pool`. What is killed too often is parked, as it should be."""
UNDEGRADED = b'"degraded":[]'


@dataclass
class Arm:
    """One plan under fire. Shares are of all requests.

    Attributes:
        in_time: answered with status 200 within the deadline. degraded: of those answered.
        killed: how many of what.
        works: the pool's workloads and their phases at the end.
    """

    plan: str
    rate: float
    requests: int
    answered: float
    in_time: float
    degraded: float
    p50_ms: float
    p99_ms: float
    worst_ms: float
    statuses: dict[int, int]
    killed: dict[str, int]
    works: dict[str, str] = field(default_factory=dict)


@dataclass
class HaproxyKill:
    """One kill of HAProxy under two loads. `outage_s`: from the first call that failed to the end of the last one."""

    outage_s: float
    calls: int
    failed: int
    failed_with_one_retry: int


class Killer:
    """Chooses the next victim: deployments and single processes in turn, a replica of each at random.

    Args:
        singles: what is killed although there is no other, by the beginning of its title.
    """

    def __init__(self, live: Live, singles: Mapping[str, str], seed: int):
        self._live, self._singles = live, singles
        self._random = random.Random(seed)
        self._turns = itertools.cycle([*sorted(live.running()), *singles])
        self.killed: Counter[str] = Counter()

    def kill_one(self) -> None:
        """Kill the first in turn that may be killed; nobody when Serve is still busy with the one before."""
        running = self._live.running()
        for _ in range(len(running) + len(self._singles) if running else 0):
            turn = next(self._turns)
            spare = running.get(turn, [])
            if turn in self._singles:
                victims = self._live.processes(self._singles[turn])
            else:
                victims = spare if len(spare) > 1 else []
            if victims:
                self._random.choice(victims).kill()
                self.killed[turn] += 1
                return


def sustained_rate(live: Live, requests: list[bytes]) -> float:
    """Requests/s the service sustains, to within a sixth: enough to choose a moderate load from."""
    seconds = QUICK_PROBE_S if is_quick() else PROBE_S
    seeds = itertools.count(1)
    load = Load(live.port, requests, np.zeros(0), timeout_s=3)

    def measure(rate: float):
        with start(load.at(poisson(rate, seconds, seed=next(seeds)))) as running:
            return running.outcomes().summary()

    return best_rate(measure, begin=100, resolution=0.17, repeats=1).rate


def under_fire(live: Live, plan: str, count: int) -> Arm:
    """One arm: the load and, beside it, the killing."""
    requests = live.requests(2_000, timeout_ms=DEADLINE_MS)
    rate = max(10.0, SHARE_OF_CAPACITY * sustained_rate(live, requests))
    times = poisson(rate, count / rate * 1.05 + 5, seed=7)[:count]
    killer = Killer(live, SINGLES | (POOL_SINGLES if plan == POOL else {}), seed=11)
    load = Load(live.port, requests, times, contains=UNDEGRADED, timeout_s=5)
    with start(load) as running:
        end_s = running.started_s + times[-1] - KILL_EVERY_S
        while time.monotonic() < end_s:
            time.sleep(max(0.0, min(KILL_EVERY_S, end_s - time.monotonic())))
            if time.monotonic() < end_s:
                killer.kill_one()
        outcomes = running.outcomes()
    return _arm(plan, rate, outcomes, killer.killed, works_of(live) if plan == POOL else {})


def works_of(live: Live) -> dict[str, str]:
    """Phase of each workload that was submitted, and how often it has come back, once a controller says so."""
    report = await_truth(LivePool(live).report, "a report of the pool")
    return {each.name: f"{each.phase}, {each.restarts} restarts" for each in report.workloads if each.name in WORKS}


def _arm(plan: str, rate: float, outcomes: Outcomes, killed: Counter[str], works: dict[str, str]) -> Arm:
    summary = outcomes.summary()
    in_time = (outcomes.status == 200) & (outcomes.latency_s * 1e3 <= DEADLINE_MS)
    answered = max(1, int((outcomes.status == 200).sum()))
    return Arm(
        plan=plan,
        rate=rate,
        requests=summary.count,
        answered=summary.answered,
        in_time=float(in_time.mean()),
        degraded=1 - summary.found / answered,
        p50_ms=summary.p50_ms,
        p99_ms=summary.p99_ms,
        worst_ms=summary.max_ms,
        statuses=summary.statuses,
        killed=dict(killed),
        works=works,
    )


def without_haproxy(live: Live, seed: int) -> HaproxyKill:
    """Kill HAProxy under two loads at once: of callers who do not retry, and of callers who retry once."""
    requests = live.requests(500, timeout_ms=DEADLINE_MS)
    times = poisson(HAPROXY_RATE, HAPROXY_WATCH_S, seed=seed)
    load = Load(live.port, requests, times, timeout_s=3)
    with start(load) as plain, start(replace(load, retry=True, retry_after_s=RETRY_AFTER_S)) as retrying:
        time.sleep(2)
        for process in live.haproxy():
            process.kill()
        outcomes, with_retry = plain.outcomes(), retrying.outcomes()
    lost = outcomes.status != 200
    ends = (outcomes.scheduled_s + outcomes.latency_s)[lost]
    return HaproxyKill(
        outage_s=float(ends.max() - outcomes.scheduled_s[lost].min()) if lost.any() else 0.0,
        calls=len(times),
        failed=int(lost.sum()),
        failed_with_one_retry=int((with_retry.status != 200).sum()),
    )


def settle(live: Live) -> None:
    """Wait until every deployment has two replicas again, or it has been long enough."""
    end_s = time.monotonic() + SETTLE_S
    while time.monotonic() < end_s:
        running = live.running()
        if running and all(len(replicas) > 1 for replicas in running.values()):
            return
        time.sleep(1)


def main(plans: tuple[str, ...] = PLANS) -> None:
    count, kills = (QUICK_REQUESTS, QUICK_HAPROXY_KILLS) if is_quick() else (REQUESTS, HAPROXY_KILLS)
    arms, haproxy = [], []
    for plan in plans:
        with live_service(plan) as live:
            print(f"{plan}: the service is up; {count} requests", flush=True)
            for name, (kind, more) in WORKS.items() if plan == POOL else ():
                LivePool(live).submit(name, kind, **more)
            arms.append(under_fire(live, plan, count))
            if plan == plans[-1]:
                settle(live)
                haproxy = [without_haproxy(live, seed) for seed in range(kills)]
    _print(arms, haproxy)


def _print(arms: list[Arm], haproxy: list[HaproxyKill]) -> None:
    print_table(
        ("plan", "req/s", "requests", "answered", "in time", "degraded", "p50 ms", "p99 ms", "worst ms", "killed"),
        [
            (
                *(arm.plan, arm.rate, arm.requests, f"{arm.answered:.4%}", f"{arm.in_time:.4%}"),
                *(f"{arm.degraded:.3%}", arm.p50_ms, arm.p99_ms, arm.worst_ms),
                ", ".join(f"{count} {name}" for name, count in arm.killed.items()),
            )
            for arm in arms
        ],
    )
    for arm in arms:
        for name, became in arm.works.items():
            print(f"{arm.plan}: {name}: {became}")
    print_table(("HAProxy killed: outage s", "calls", "failed", "with one retry"), [astuple(kill) for kill in haproxy])
    figures = {
        "deadline_ms": DEADLINE_MS,
        "arms": [asdict(arm) for arm in arms],
        "haproxy_killed": [asdict(kill) for kill in haproxy],
    }
    floors = [Floor(f"{arm.plan}: share answered within the deadline", arm.in_time, 0.9999) for arm in arms]
    print_report("chaos", _with_text_keys(figures), floors)


def _with_text_keys(value: Any) -> Any:
    """JSON has no keys but text."""
    if isinstance(value, dict):
        return {str(key): _with_text_keys(each) for key, each in value.items()}
    return [_with_text_keys(each) for each in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main(tuple(sys.argv[1:]) or PLANS)
