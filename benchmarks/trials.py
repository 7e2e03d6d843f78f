"""Trials of a fault under an open-loop load, each with one figure: the worst wait.

Of all requests under way at the moment of the fault or sent in the second after it, the worst wait is the longest
time from the fault (or from sending, when that was later) to the answer. So a trial in which nobody was hit shows
the ordinary latency, and one unlucky request decides a trial. A wait for a *full* answer counts a degraded one as
not given before its deadline.
"""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import orjson

from benchmarks.live import Live
from benchmarks.load import Load, Outcomes, poisson, post, start
from features.datasets import Dataset
from features.schema import USER_ID

KILL, STOP = "SIGKILL", "SIGSTOP"
WINDOW_S = 1.0
TIMEOUT_MS = 500
LONGEST = 4
"""Trials whose figure is told by itself."""
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


class Breaks(Protocol):
    """Something that breaks one thing after the other; ``left``: how many are to come."""

    @property
    def left(self) -> int: ...

    def run(self, until_s: float) -> list[Fault]:
        """Break what can be broken until then, by time.monotonic(); returns what was."""
        ...


def under_load(live: Live, breaker: Breaks, rate_per_s: float, block_s: float, last_s: float) -> Findings:
    """Break all there is to break while an open-loop load goes on, in blocks of some length.

    Args:
        last_s: seconds before the end of a block in which nothing is broken any more.
    """
    findings, began_s = Findings(), time.monotonic()
    for block in itertools.count():
        times_s = poisson(rate_per_s, block_s, seed=block)
        load = Load(live.port, requests_of(live, len(times_s), block), times_s, contains=FULL, keep_bodies=True)
        with start(load) as running:
            time.sleep(1.0)
            faults = breaker.run(running.started_s + block_s - last_s)
            outcomes = running.outcomes()
        judge(outcomes, faults, findings.trials)
        for why in losses(outcomes, faults):
            print(why, flush=True)
        findings.sent += len(times_s)
        findings.lost += int((outcomes.status != 200).sum())
        findings.statuses.update(outcomes.status[outcomes.status != 200].tolist())
        findings.answered |= {f"{block}-{i}" for i in np.flatnonzero(outcomes.status == 200)}
        print(f"{breaker.left} trials left after {time.monotonic() - began_s:.0f} s", flush=True)
        if not breaker.left:
            break
    return findings


def losses(outcomes: Outcomes, faults: Sequence[Fault]) -> list[str]:
    """Of each request without a good answer: when it was sent, as seen from the last fault before, and what came."""
    found = []
    for index in np.flatnonzero(outcomes.status != 200):
        sent_s, took_s = outcomes.started_s + outcomes.scheduled_s[index], np.nan_to_num(outcomes.latency_s[index])
        before = [fault for fault in faults if fault.at_s <= sent_s + took_s]
        last = before[-1] if before else None
        since = f"{sent_s - last.at_s:.2f} s after {last.kind} of {last.deployment}" if last else "before any fault"
        body = (outcomes.bodies[index] or b"") if outcomes.bodies else b""
        what = f"status {outcomes.status[index]} after {took_s * 1000:.0f} ms"
        found.append(f"lost: sent {since}, {what} {body[:200].decode(errors='replace')}".rstrip())
    return found


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


def columns_of(found: dict[str, Any]) -> list[str]:
    """What of `summed_up` is a number, and so fits into a table."""
    return [name for name, value in found.items() if isinstance(value, int | float)]


def summed_up(trials: Trials) -> dict[str, Any]:
    """Quantiles of the worst waits, and what else happened to the requests that could have been hit."""
    p50, p99, worst = np.quantile(trials.answered_ms, (0.5, 0.99, 1.0), method="higher").tolist()
    return {
        "trials": len(trials.answered_ms),
        "p50_ms": p50,
        "p99_ms": p99,
        "max_ms": worst,
        "longest_ms": [round(each) for each in sorted(trials.answered_ms)[-LONGEST:]],
        "full_p50_ms": float(np.quantile(trials.full_ms, 0.5, method="higher")),
        "full_p99_ms": float(np.quantile(trials.full_ms, 0.99, method="higher")),
        "requests": trials.requests,
        "degraded": trials.degraded,
        "lost": trials.lost,
        "reasons": dict(trials.reasons.most_common()),
    }
