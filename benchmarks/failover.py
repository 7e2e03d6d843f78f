"""How long a caller waits for its answer when a replica breaks under load: killed, stopped, stalled or raising.

The split service runs for real, with two replicas of each stage and of the gateway, under an open-loop load.
Again and again one replica, chosen at random, breaks at a random moment. Of each such trial the figure is the
**worst wait**: of all requests under way at that moment or sent in the second after it, the longest time from
the fault (or from sending, when that was later) to the answer. So a trial in which nobody was hit shows
the ordinary latency, and one unlucky request decides a trial. A wait for a *full* answer counts a degraded
one as not given before its deadline.

A next trial begins when every deployment that it needs is whole again; what breaks is spread over the
deployments, so that one is broken while the others recover.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import sqlite3
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from benchmarks.failover_app import RAISE, STALL, order
from benchmarks.live import Live, live_service
from benchmarks.load import Load, Outcomes, poisson, post, start
from benchmarks.report import Floor, is_quick, print_report, print_table
from configs.settings import STAGES
from features.datasets import Dataset
from features.schema import USER_ID

KILL, STOP = "SIGKILL", "SIGSTOP"
GATEWAY = "gateway"
KINDS = [("stage", kind) for kind in (KILL, STOP, STALL, RAISE)] + [(GATEWAY, kind) for kind in (KILL, STOP, STALL)]
TRIALS, QUICK_TRIALS = 100, 3
RATE_PER_S = 20.0
"""Little beside what the split service sustains: restarts keep one of two cores busy for seconds each."""
BLOCK_S, QUICK_BLOCK_S = 60.0, 25.0
LASTS_S = {"stage": 1.0, GATEWAY: 2.0}
"""How long a replica stays stopped, stalled or raising; longer than its callers may take to notice."""
WINDOW_S = 1.0
SETTLE_S = {"stage": 1.5, GATEWAY: 3.0}
"""After a fault that a replica survives: its callers try it again after a pause of at most 2 s."""
TIMEOUT_MS = 500
LOOK_EVERY_S = 0.5
STAGE_FLOOR_MS, GATEWAY_HANG_FLOOR_MS = 200, 1_200
FULL = b'"degraded":[]'


@dataclass(frozen=True)
class Fault:
    """What was done to a replica, and when by time.monotonic()."""

    where: str
    kind: str
    deployment: str
    at_s: float


@dataclass
class Trials:
    """What came of the faults of one kind: the worst waits, in milliseconds, one a trial."""

    answered_ms: list[float]
    full_ms: list[float]
    requests: int = 0
    lost: int = 0
    degraded: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    """Why answers were degraded. What begins with overload is what the machine had no time for, not the fault."""


class Breaker:
    """Breaks one replica after the other while the load goes on."""

    def __init__(self, live: Live, per_kind: int, seed: int):
        self._live = live
        self._random = random.Random(seed)
        self._left = [
            (where, kind, STAGES[i % len(STAGES)] if where == "stage" else GATEWAY)
            for where, kind in KINDS
            for i in range(per_kind)
        ]
        self._random.shuffle(self._left)
        self._busy_until_s: dict[str, float] = {}
        self._running = live.running()
        self._seen_s = time.monotonic()
        self._expected = {name: len(replicas) for name, replicas in self._running.items()}

    @property
    def left(self) -> int:
        return len(self._left)

    def run(self, until_s: float) -> list[Fault]:
        """Break what can be broken until then; returns what was."""
        faults = []
        while self._left and time.monotonic() < until_s:
            found = next((i for i, (_, _, name) in enumerate(self._left) if self._is_whole(name)), None)
            if found is None:
                time.sleep(0.1)
                continue
            time.sleep(self._random.uniform(0, 0.1))  # the moment must not follow from how we wait
            faults.append(self._break(*self._left.pop(found)))
            lasts_s = WINDOW_S if faults[-1].kind == KILL else LASTS_S[faults[-1].where]
            time.sleep(max(0.0, faults[-1].at_s + lasts_s + 0.1 - time.monotonic()))
        return faults

    def _is_whole(self, deployment: str) -> bool:
        if time.monotonic() < self._busy_until_s.get(deployment, 0.0):
            return False
        if time.monotonic() - self._seen_s > LOOK_EVERY_S:
            self._running, self._seen_s = self._live.running(), time.monotonic()
        return len(self._running.get(deployment, ())) == self._expected[deployment]

    def _break(self, where: str, kind: str, deployment: str) -> Fault:
        pid = self._random.choice(self._running[deployment]).pid
        lasts_s = LASTS_S[where]
        at_s = time.monotonic()
        if kind == KILL:
            os.kill(pid, signal.SIGKILL)
        elif kind == STOP:
            os.kill(pid, signal.SIGSTOP)
            time.sleep(lasts_s)
            os.kill(pid, signal.SIGCONT)
        else:
            order(self._live.home, pid, kind, lasts_s)
        # The controller takes a moment to notice a death.
        settle_s = 2.0 if kind == KILL else lasts_s + SETTLE_S[where]
        self._busy_until_s[deployment] = at_s + settle_s
        return Fault(where, kind, deployment, at_s)


def requests_of(live: Live, count: int, block: int) -> list[bytes]:
    """Calls that say in their scene who they are, so that the impression of each can be found again."""
    users = Dataset.load(live.settings.dataset_folder).users.column(USER_ID).to_pylist()
    chosen = np.random.default_rng(block).integers(len(users), size=count)
    bodies = (
        {"user_id": users[user], "k": 10, "scene": f"{block}-{i}", "timeout_ms": TIMEOUT_MS}
        for i, user in enumerate(chosen)
    )
    return [post("/v1/recommend", orjson.dumps(body)) for body in bodies]


def judge(outcomes: Outcomes, faults: Sequence[Fault], found: dict[tuple[str, str], Trials]) -> None:
    """Add the trials of one block of load to what was found so far."""
    sent_s = outcomes.started_s + outcomes.scheduled_s
    done_s = sent_s + np.nan_to_num(outcomes.latency_s, nan=np.inf)
    answered = outcomes.status == 200
    for fault in faults:
        hit = (done_s >= fault.at_s) & (sent_s < fault.at_s + WINDOW_S)
        if not hit.any():
            continue
        waits_ms = (done_s - np.maximum(sent_s, fault.at_s)) * 1000
        full_ms = np.where(outcomes.found, waits_ms, np.maximum(waits_ms, TIMEOUT_MS))
        trials = found.setdefault((fault.where, fault.kind), Trials([], []))
        trials.answered_ms.append(float(waits_ms[hit].max()))
        trials.full_ms.append(float(full_ms[hit].max()))
        trials.requests += int(hit.sum())
        trials.lost += int((hit & ~answered).sum())
        degraded = np.flatnonzero(hit & answered & ~outcomes.found)
        trials.degraded += len(degraded)
        trials.reasons.update(reason for i in degraded for reason in _reasons(outcomes, int(i)))


def _reasons(outcomes: Outcomes, index: int) -> list[str]:
    """``stage.reason`` of everything that an answer was made without."""
    body = outcomes.bodies[index] if outcomes.bodies else None
    return [f"{each['stage']}.{each['reason']}" for each in orjson.loads(body)["degraded"]] if body else []


def impressions(live: Live) -> Counter[str]:
    """Rows of the event log for each scene."""
    with sqlite3.connect(f"file:{live.settings.event_log_file}?mode=ro", uri=True) as log:
        rows = log.execute("SELECT payload FROM events WHERE kind = 'impression'")
        return Counter(orjson.loads(payload)["scene"] for (payload,) in rows)


@dataclass
class Findings:
    """What a whole run found."""

    trials: dict[tuple[str, str], Trials] = field(default_factory=dict)
    sent: int = 0
    lost: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    """Of the requests that were lost; 0 stands for no answer."""
    answered: set[str] = field(default_factory=set)
    """Scenes of the requests that got an answer."""
    impressions: Counter[str] = field(default_factory=Counter)
    """Rows of the event log for each scene."""

    @property
    def doubled(self) -> int:
        return sum(count - 1 for count in self.impressions.values() if count > 1)

    @property
    def missing(self) -> int:
        return len(self.answered - set(self.impressions))


def measure(live: Live, per_kind: int, block_s: float) -> Findings:
    """Break replicas of a running service, ``per_kind`` times in each way."""
    breaker, findings, began_s = Breaker(live, per_kind, seed=7), Findings(), time.monotonic()
    for block in itertools.count():
        times_s = poisson(RATE_PER_S, block_s, seed=block)
        load = Load(live.port, requests_of(live, len(times_s), block), times_s, contains=FULL, keep_bodies=True)
        with start(load) as running:
            time.sleep(1.0)
            faults = breaker.run(running.started_s + block_s - LASTS_S[GATEWAY] - WINDOW_S)
            outcomes = running.outcomes()
        judge(outcomes, faults, findings.trials)
        findings.sent += len(times_s)
        findings.lost += int((outcomes.status != 200).sum())
        findings.statuses.update(outcomes.status[outcomes.status != 200].tolist())
        findings.answered |= {f"{block}-{i}" for i in np.flatnonzero(outcomes.status == 200)}
        print(f"{breaker.left} trials left after {time.monotonic() - began_s:.0f} s", flush=True)
        if not breaker.left:
            break
    time.sleep(2.0)  # impressions are written behind the requests
    findings.impressions = impressions(live)
    return findings


def report(findings: Findings) -> None:
    figures: dict[str, Any] = {}
    floors: list[Floor] = []
    for where, kind in KINDS:
        figures[f"{where} {kind}"] = found = summed_up(findings.trials[where, kind])
        limit = STAGE_FLOOR_MS if where == "stage" else GATEWAY_HANG_FLOOR_MS
        floors.append(Floor(f"{where} {kind}: p99 of the worst wait, ms", found["p99_ms"], limit, "lower"))
        if where == "stage":
            title = f"{where} {kind}: p99 of the worst wait for a full answer, ms"
            floors.append(Floor(title, found["full_p99_ms"], limit, "lower"))
    if findings.statuses:
        print(f"lost by status (0: no answer): {dict(findings.statuses)}")
    totals = {name: getattr(findings, name) for name in ("sent", "lost", "doubled", "missing")}
    floors += [
        Floor("requests lost", totals["lost"], 0, "lower"),
        Floor("impressions written twice", totals["doubled"], 0, "lower"),
    ]
    columns = [name for name in next(iter(figures.values())) if name != "reasons"]
    print_table(["fault", *columns], [[name, *(found[c] for c in columns)] for name, found in figures.items()])
    for name, found in figures.items():
        if found["reasons"]:
            print(f"{name}: degraded for {found['reasons']}")
    print(", ".join(f"{name} {count}" for name, count in totals.items()))
    print_report("failover", figures | totals, floors)


def summed_up(trials: Trials) -> dict[str, Any]:
    """Quantiles of the worst waits, and what else happened to the requests that could have been hit."""
    p50, p99, worst = np.quantile(trials.answered_ms, (0.5, 0.99, 1.0), method="higher").tolist()
    return {
        "trials": len(trials.answered_ms),
        "p50_ms": p50,
        "p99_ms": p99,
        "max_ms": worst,
        "full_p50_ms": float(np.quantile(trials.full_ms, 0.5, method="higher")),
        "full_p99_ms": float(np.quantile(trials.full_ms, 0.99, method="higher")),
        "requests": trials.requests,
        "degraded": trials.degraded,
        "lost": trials.lost,
        "reasons": dict(trials.reasons.most_common()),
    }


def main() -> None:
    with live_service("split", program="benchmarks.failover_app") as live:
        findings = measure(live, QUICK_TRIALS if is_quick() else TRIALS, QUICK_BLOCK_S if is_quick() else BLOCK_S)
    report(findings)


if __name__ == "__main__":
    main()
