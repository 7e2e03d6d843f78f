"""How long a caller waits for its answer when a replica breaks under load: killed, stopped, stalled or raising.

The split service runs for real, with two replicas of each stage and of the gateway, under an open-loop load.
Again and again one replica, chosen at random, breaks at a random moment; of each such trial the figure is the
worst wait (`benchmarks.trials`).

``python -m benchmarks.failover stage`` breaks stages alone, ``gateway`` gateways alone; either takes half of the time.
A next trial begins when every deployment that it needs is whole again; what breaks is spread over the
deployments, so that one is broken while the others recover.
"""

from __future__ import annotations

import os
import random
import signal
import sqlite3
import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import orjson

from benchmarks.failover_app import RAISE, STALL, order
from benchmarks.live import Live, live_service
from benchmarks.report import Floor, is_quick, print_report, print_table
from benchmarks.trials import KILL, STOP, TIMEOUT_MS, WINDOW_S, Fault, Findings, columns_of, summed_up, under_load
from configs.settings import STAGES

GATEWAY = "gateway"
Kinds = Sequence[tuple[str, str]]
"""Where something breaks, and how."""
KINDS: Kinds = [
    *(("stage", kind) for kind in (KILL, STOP, STALL, RAISE)), *((GATEWAY, kind) for kind in (KILL, STOP, STALL))
]  # fmt: skip
TRIALS, QUICK_TRIALS = 100, 3
RATE_PER_S = 20.0
"""Little beside what the split service sustains: restarts keep one of two cores busy for seconds each."""
BLOCK_S, QUICK_BLOCK_S = 60.0, 25.0
LASTS_S = {"stage": 1.0, GATEWAY: 2.0}
"""How long a replica stays stopped, stalled or raising; longer than its callers may take to notice."""
SETTLE_S = {"stage": 1.5, GATEWAY: 3.0}
"""After a fault that a replica survives: its callers try it again after a pause of at most 2 s."""
ANSWERED_S = TIMEOUT_MS / 1000
"""The next fault comes when the requests of this one are answered, or it would lengthen their waits."""
LOOK_EVERY_S = 0.5
FLOOR_MS, STALL_FLOOR_MS = 200, 1_200
"""A gateway that runs and does not answer is given up after the longest deadline; nothing tells it from a busy one."""


class Breaker:
    """Breaks one replica after the other while the load goes on."""

    def __init__(self, live: Live, kinds: Kinds, per_kind: int, seed: int):
        self._live = live
        self._random = random.Random(seed)
        self._left = [
            (where, kind, STAGES[i % len(STAGES)] if where == "stage" else GATEWAY)
            for where, kind in kinds
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
            time.sleep(max(0.0, faults[-1].at_s + lasts_s + ANSWERED_S - time.monotonic()))
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
            with suppress(ProcessLookupError):  # a gateway's watch ended it
                os.kill(pid, signal.SIGCONT)
        else:
            order(self._live.home, pid, kind, lasts_s)
        # The controller takes a moment to notice a death.
        settle_s = 2.0 if kind == KILL else lasts_s + SETTLE_S[where]
        self._busy_until_s[deployment] = at_s + settle_s
        return Fault(where, kind, deployment, at_s)


def impressions(live: Live) -> Counter[str]:
    """Rows of the event log for each scene."""
    with sqlite3.connect(f"file:{live.settings.event_log_file}?mode=ro", uri=True) as log:
        rows = log.execute("SELECT payload FROM events WHERE kind = 'impression'")
        return Counter(orjson.loads(payload)["scene"] for (payload,) in rows)


def measure(live: Live, kinds: Kinds, per_kind: int, block_s: float) -> Findings:
    """Break replicas of a running service, ``per_kind`` times in each way."""
    breaker = Breaker(live, kinds, per_kind, seed=7)
    findings = under_load(live, breaker, RATE_PER_S, block_s, LASTS_S[GATEWAY] + WINDOW_S)
    time.sleep(2.0)  # impressions are written behind the requests
    findings.impressions = impressions(live)
    return findings


def report(findings: Findings, kinds: Kinds) -> None:
    figures: dict[str, Any] = {}
    floors: list[Floor] = []
    for where, kind in kinds:
        figures[f"{where} {kind}"] = found = summed_up(findings.trials[where, kind])
        limit = STALL_FLOOR_MS if (where, kind) == (GATEWAY, STALL) else FLOOR_MS
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
    columns = columns_of(next(iter(figures.values())))
    print_table(["fault", *columns], [[name, *(found[c] for c in columns)] for name, found in figures.items()])
    for name, found in figures.items():
        if found["reasons"]:
            print(f"{name}: degraded for {found['reasons']}")
    print(", ".join(f"{name} {count}" for name, count in totals.items()))
    print_report("failover", figures | totals, floors)


def main(*places: str) -> None:
    """Raises SystemExit for a place that is none."""
    if unknown := set(places) - {where for where, _ in KINDS}:
        raise SystemExit(f"no such place: {sorted(unknown)}; there are stage and {GATEWAY}")
    kinds = [each for each in KINDS if not places or each[0] in places]
    per_kind, block_s = (QUICK_TRIALS, QUICK_BLOCK_S) if is_quick() else (TRIALS, BLOCK_S)
    with live_service("split", program="benchmarks.failover_app") as live:
        findings = measure(live, kinds, per_kind, block_s)
    report(findings, kinds)


if __name__ == "__main__":
    main(*sys.argv[1:])
