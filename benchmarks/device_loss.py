"""How long callers wait for an answer when a device is lost under load: all its processes killed, or all stopped.

The pool of two emulated devices runs for real: a gateway on each, a fine-tune on one of them, and an open-loop load.
Again and again all processes at the gate of one device, chosen at random, get SIGKILL or SIGSTOP at a random moment;
those that are stopped and still there after two seconds go on then. Of each trial the figure is the worst wait
(`benchmarks.trials`). A next trial begins when every device has its gateway again and the fine-tune runs.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from typing import Any

import numpy as np

from benchmarks.live import Live, live_service
from benchmarks.live_pool import ENDLESS, LivePool, await_truth
from benchmarks.report import Floor, is_quick, print_report, print_table
from benchmarks.trials import KILL, STOP, WINDOW_S, Fault, Findings, columns_of, summed_up, under_load

DEVICE, GATEWAY, FINETUNE = "device", "gateway", "night"
KINDS = (KILL, STOP)
TRIALS, QUICK_TRIALS = 30, 2
"""Of each kind."""
RATE_PER_S = 30.0
BLOCK_S, QUICK_BLOCK_S = 60.0, 30.0
LASTS_S = 2.0
"""How long what was stopped stays so, unless it was ended; longer than its callers may take to notice."""
LOOK_EVERY_S = 0.5
FLOOR_MS = 200
PATIENT = {"RECPOOL_POOL__BREAKER__CRASHES": "1000", "RECPOOL_POOL__BREAKER__LONGEST_WAIT_S": "2"}
"""The fine-tune is killed more often than any that is not parked."""


class DeviceBreaker:
    """Takes one device after the other away while the load goes on."""

    def __init__(self, live: Live, per_kind: int, seed: int):
        self._live, self._pool = live, LivePool(live)
        self._random = random.Random(seed)
        self._left = [kind for kind in KINDS for _ in range(per_kind)]
        self._random.shuffle(self._left)
        self._expected = len(live.running()[GATEWAY])
        self.hit: Counter[str] = Counter()

    @property
    def left(self) -> int:
        return len(self._left)

    def run(self, until_s: float) -> list[Fault]:
        faults = []
        while self._left and time.monotonic() < until_s:
            if not self.is_whole():
                time.sleep(LOOK_EVERY_S)
                continue
            time.sleep(self._random.uniform(0, LOOK_EVERY_S))  # the moment must not follow from how we wait
            faults.append(self._break(self._left.pop()))
            time.sleep(max(0.0, faults[-1].at_s + WINDOW_S + 0.1 - time.monotonic()))
        return faults

    def is_whole(self) -> bool:
        """Whether each device has a gateway, Serve has as many as at first, and the fine-tune computes somewhere."""
        names = {device: {slot.workload for slot in self._pool.members(device)} for device in self._pool.devices}
        is_busy = any(FINETUNE in each for each in names.values()) and all(GATEWAY in each for each in names.values())
        return is_busy and len(self._live.running().get(GATEWAY, ())) == self._expected

    def _break(self, kind: str) -> Fault:
        device = self._random.choice(self._pool.devices)
        slots = self._pool.members(device)
        at_s = time.monotonic()
        _signal(slots, signal.SIGKILL if kind == KILL else signal.SIGSTOP)
        if kind == STOP:
            time.sleep(LASTS_S)
            _signal(slots, signal.SIGCONT)
        self.hit.update(slot.workload for slot in slots)
        return Fault(DEVICE, kind, device, at_s)


def _signal(slots: Any, number: int) -> None:
    for slot in slots:
        with suppress(ProcessLookupError):  # it was stopped, and so was ended
            os.kill(slot.pid, number)


def report(findings: Findings, hit: Counter[str]) -> None:
    figures: dict[str, Any] = {kind: summed_up(findings.trials[DEVICE, kind]) for kind in KINDS}
    waits_ms = [wait for kind in KINDS for wait in findings.trials[DEVICE, kind].answered_ms]
    p50, p99, worst = np.quantile(waits_ms, (0.5, 0.99, 1.0), method="higher").tolist()
    columns = columns_of(figures[KILL])
    print_table(["all processes get", *columns], [[kind, *(figures[kind][c] for c in columns)] for kind in KINDS])
    print(f"all {len(waits_ms)} trials: p50 {p50:.0f} ms, p99 {p99:.0f} ms, worst {worst:.0f} ms")
    print(f"processes hit: {dict(hit)}; {findings.sent} requests, {findings.lost} lost {dict(findings.statuses) or ''}")
    for kind in KINDS:
        print(f"{kind}: longest {figures[kind]['longest_ms']} ms, degraded for {figures[kind]['reasons'] or 'nothing'}")
    floors = [
        *(Floor(f"{kind}: p99 of the worst wait, ms", figures[kind]["p99_ms"], FLOOR_MS, "lower") for kind in KINDS),
        Floor("requests lost", findings.lost, 0, "lower"),
    ]
    together = {"trials": len(waits_ms), "p50_ms": p50, "p99_ms": p99, "max_ms": worst}
    totals = {"sent": findings.sent, "lost": findings.lost, "hit": dict(hit)}
    print_report("device_loss", figures | {"all": together} | totals, floors, emulated=True)


def main() -> None:
    per_kind, block_s = (QUICK_TRIALS, QUICK_BLOCK_S) if is_quick() else (TRIALS, BLOCK_S)
    with live_service("pool", **PATIENT) as live:
        LivePool(live).submit(FINETUNE, "finetune", **ENDLESS)
        breaker = DeviceBreaker(live, per_kind, seed=7)
        await_truth(breaker.is_whole, "a gateway on each device and a fine-tune")
        findings = under_load(live, breaker, RATE_PER_S, block_s, LASTS_S + WINDOW_S)
    report(findings, breaker.hit)


if __name__ == "__main__":
    main()
