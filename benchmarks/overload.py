"""What the service does when more is asked than it can answer: from half of its capacity to three times that.

Open loop, one call of ten of high priority and three of low. Capacity is the most answers a second in full
quality and within the deadline, however much is asked: what the service is there for. Goodput counts answers of
status 200 within their deadline, from the scheduled time of sending, whether degraded or not. The generator,
HAProxy and the replicas share the machine.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from benchmarks.live import Live, live_service
from benchmarks.load import Load, Outcomes, poisson, start
from benchmarks.report import Floor, is_quick, print_report, print_table
from serving.priority import HEADER, Priority

DEADLINE_MS = 200.0
MIX = {Priority.HIGH: 0.1, Priority.NORMAL: 0.6, Priority.LOW: 0.3}
LOADS = (0.5, 0.8, 1.0, 1.5, 2.0, 3.0)
CALLS = 4_000
"""Distinct calls, sent in turn."""
FULL_QUALITY = b'"degraded":[]'
ANSWERED, REFUSED = 200, 429
FIRST_RATE, STEP = 100.0, 1.3
PAUSE_S = 12.0
"""Between two loads, so that quality given up under one is back before the next."""


@dataclass(frozen=True)
class Size:
    """Seconds of each load, and how often each is repeated."""

    search_s: float
    load_s: float
    repeats: int


FULL, QUICK = Size(5, 10, 3), Size(2.5, 4, 1)


@dataclass(frozen=True)
class Caller:
    """Sends calls of mixed priorities to a service."""

    port: int
    calls: Sequence[bytes]
    priorities: np.ndarray

    @classmethod
    def of(cls, live: Live) -> Caller:
        drawn = np.random.default_rng(1).choice(list(MIX), size=CALLS, p=list(MIX.values()))
        plain = live.requests(CALLS, timeout_ms=DEADLINE_MS)
        return cls(live.port, [_stating(call, priority) for call, priority in zip(plain, drawn, strict=True)], drawn)

    def at(self, rate: float, seconds: float, seed: int) -> Seen:
        """What came of a load of `rate` calls a second."""
        load = Load(self.port, self.calls, poisson(rate, seconds, seed), timeout_s=5.0, contains=FULL_QUALITY)
        with start(load) as running:
            outcomes = running.outcomes()
        time.sleep(PAUSE_S)
        count = len(outcomes.status)
        return Seen(rate, seconds, outcomes, np.resize(self.priorities, count))


@dataclass(frozen=True)
class Seen:
    """A load and its outcomes; `priorities` [N] of the calls."""

    rate: float
    seconds: float
    outcomes: Outcomes
    priorities: np.ndarray

    @property
    def goodput(self) -> float:
        """Answers a second within their deadline."""
        return float(np.count_nonzero(self._good)) / self.seconds

    @property
    def full_goodput(self) -> float:
        """Of these, the answers in full quality."""
        return float(np.count_nonzero(self._good & self.outcomes.found)) / self.seconds

    def figures(self) -> dict[str, Any]:
        outcomes, answered = self.outcomes, self.outcomes.status == ANSWERED
        lost = ~answered & (outcomes.status != REFUSED)
        return {
            "offered_per_s": len(outcomes.status) / self.seconds,
            "goodput_per_s": self.goodput,
            "full_per_s": self.full_goodput,
            "refused": float(np.mean(outcomes.status == REFUSED)),
            "late_or_lost": float(np.mean(lost | (answered & ~self._good))),
            "degraded": _share(answered & ~outcomes.found, answered),
            "refusal_p99_ms": _quantile(outcomes.latency_s[outcomes.status == REFUSED] * 1000, 0.99),
            "generator_lag_p99_ms": float(np.quantile(outcomes.lag_s, 0.99) * 1000),
            **{f"{priority}_{name}": value for priority in Priority for name, value in self._of(priority).items()},
        }

    @property
    def _good(self) -> np.ndarray:
        return (self.outcomes.status == ANSWERED) & (self.outcomes.latency_s * 1000 <= DEADLINE_MS)

    def _of(self, priority: Priority) -> dict[str, float]:
        """How calls of one priority fared."""
        own = self.priorities == priority
        answered = own & (self.outcomes.status == ANSWERED)
        return {
            "p50_ms": _quantile(self.outcomes.latency_s[answered] * 1000, 0.5),
            "p99_ms": _quantile(self.outcomes.latency_s[answered] * 1000, 0.99),
            "good": _share(self._good & own, own),
            "degraded": _share(answered & ~self.outcomes.found, answered),
        }


def main() -> None:
    size = QUICK if is_quick() else FULL
    with live_service() as live:
        caller = Caller.of(live)
        caller.at(FIRST_RATE, size.search_s, seed=0)  # replicas load, caches fill, costs are learnt
        capacity = find_capacity(caller, size)
        print(f"capacity: {capacity:.0f} answers/s in full quality within {DEADLINE_MS:g} ms", flush=True)
        seen = {load: [] for load in LOADS}
        for repeat in range(size.repeats):
            for load in LOADS:
                seen[load].append(caller.at(capacity * load, size.load_s, seed=100 + repeat).figures())
    by_load = {load: _medians(figures) for load, figures in seen.items()}
    _print(by_load)
    figures = {"capacity_per_s": capacity, **{f"{load:g}x": each for load, each in by_load.items()}}
    print_report("overload", figures, floors(by_load))


def find_capacity(caller: Caller, size: Size) -> float:
    """The most goodput in full quality of any rate, going up until two rates in a row bring no more."""
    best, without_gain, rate = 0.0, 0, FIRST_RATE
    while without_gain < 2:
        goodput = caller.at(rate, size.search_s, seed=int(rate)).full_goodput
        without_gain = 0 if goodput > best * 1.03 else without_gain + 1
        best, rate = max(best, goodput), rate * STEP
    return best


def floors(by_load: dict[float, dict[str, Any]]) -> list[Floor]:
    """What the issue of overload asks for."""
    peak = max(figures["goodput_per_s"] for figures in by_load.values())
    most, half = by_load[3.0], by_load[0.5]
    refusals = [figures["refusal_p99_ms"] for figures in by_load.values() if figures["refused"] > 0]
    return [
        Floor("goodput at 3x over the peak", most["goodput_per_s"] / peak, 0.9),
        Floor("p99 of high priority at 3x over that at 0.5x", most["high_p99_ms"] / half["high_p99_ms"], 1.5, "lower"),
        Floor("p99 of refusals, ms", max(refusals, default=0.0), 10.0, "lower"),
    ]


def _print(by_load: dict[float, dict[str, Any]]) -> None:
    names = ("offered_per_s", "goodput_per_s", "full_per_s", "refused", "late_or_lost", "degraded", "refusal_p99_ms")
    names += ("generator_lag_p99_ms",)  # latencies hold it: where it is large, the machine was busy with something else
    print_table(["load", *names], [[f"{load:g}x", *(f[name] for name in names)] for load, f in by_load.items()])
    print()
    shown = ("p50_ms", "p99_ms", "good", "degraded")
    columns = [f"{priority} {name}" for priority in Priority for name in shown]
    rows = [[f"{load:g}x", *(f[c.replace(" ", "_")] for c in columns)] for load, f in by_load.items()]
    print_table(["load", *columns], rows)
    print()


def _stating(call: bytes, priority: Priority) -> bytes:
    """The call with its priority among the headers."""
    head, body = call.split(b"\r\n\r\n", 1)
    return head + f"\r\n{HEADER}: {priority}\r\n\r\n".encode() + body


def _medians(figures: list[dict[str, float]]) -> dict[str, float]:
    return {name: statistics.median(each[name] for each in figures) for name in figures[0]}


def _quantile(values: np.ndarray, q: float) -> float:
    return float(np.quantile(values, q)) if len(values) else 0.0


def _share(part: np.ndarray, whole: np.ndarray) -> float:
    return float(np.count_nonzero(part) / max(1, np.count_nonzero(whole)))


if __name__ == "__main__":
    main()
