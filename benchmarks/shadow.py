"""What the first caller of a promoted shadow waits, against the steady state, and against a shadow that is cold.

One gateway serves and one stands by, on emulated devices. Calls come one at a time. Again and again the one that
serves is killed; as soon as the pool has promoted the other, one call is timed: the first that it ever gets by way
of HAProxy. Serve's replacement is the next shadow. Every other shadow is cold: it starts with ``plan.gateway.warm``
false, and Serve's health checks, which are small requests, are not passed on to it.
"""

from __future__ import annotations

import itertools
import os
import random
import signal
import socket
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orjson

from benchmarks.live import Live, live_service
from benchmarks.load import get
from benchmarks.load.connection import parse_reply
from benchmarks.report import Floor, is_quick, print_report, print_table
from benchmarks.shadow_app import cold_file
from pool.runtime.journal import FILE

WARM, COLD = "warm", "cold"
TRIALS, QUICK_TRIALS = 10, 2
STEADY, QUICK_STEADY = 100, 40
"""Calls before each trial, one at a time."""
AFTER = 20
"""Calls behind the first: how soon a cold one is like the others."""
PAUSE_S = 0.05
"""Between two calls; the first after a promotion comes after a pause, so the others do."""
SETTLE_S = 3.0
"""A shadow stands by for so long at least, and up to twice that."""
PATIENCE_S = 90.0
FIRST_FLOOR = 1.5


@dataclass(frozen=True)
class Trial:
    """Times in milliseconds: from the kill to the promotion, of the first call after it, and of those behind."""

    kind: str
    promoted_ms: float
    first_ms: float
    after_ms: list[float]


class Caller:
    """One connection to HAProxy, one call at a time."""

    def __init__(self, port: int, calls: Sequence[bytes]):
        self._port, self._calls = port, itertools.cycle(calls)
        self._line: socket.socket | None = None

    def ask(self) -> float:
        """Milliseconds of one recommendation; raises RuntimeError when it was not answered in full quality."""
        self._send(get("/-/healthz"))  # by HAProxy itself: the connection is open and HAProxy awake
        began_s = time.perf_counter()
        status, body = self._send(next(self._calls))
        took_ms = (time.perf_counter() - began_s) * 1000
        if status != 200 or b'"degraded":[]' not in body:
            raise RuntimeError(f"status {status}: {body[:300]!r}")
        return took_ms

    def steadily(self, count: int) -> list[float]:
        taken_ms = []
        for _ in range(count):
            time.sleep(PAUSE_S)
            taken_ms.append(self.ask())
        return taken_ms

    def _send(self, call: bytes) -> tuple[int, bytes]:
        if self._line is None:
            self._line = socket.create_connection(("127.0.0.1", self._port), timeout=5)
            self._line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        try:
            self._line.sendall(call)
            data, reply = b"", None
            while reply is None:
                more = self._line.recv(1 << 20)
                if not more:
                    raise ConnectionError("closed before the answer was whole")
                data += more
                reply = parse_reply(data)
        except ConnectionError:  # it had been idle for too long
            self._line.close()
            self._line = None
            return self._send(call)
        return reply.status, reply.body


def gateways(live: Live) -> dict[int, bool]:
    """Whether it stands by, of each gateway by its process id, as the pool's book has it."""
    try:
        journal = orjson.loads((live.home / "run" / "pool" / FILE).read_bytes())
    except (OSError, ValueError):
        return {}
    return {claim["pid"]: claim["shadow"] for claim in journal["claims"].values()}


def measure(live: Live, trials: int, steady: int) -> tuple[list[Trial], list[float]]:
    """Trials of both kinds in turn, and the times of all calls before them."""
    caller, randomly = Caller(live.port, live.requests(2_000)), random.Random(7)
    kinds = [WARM, COLD] * trials
    steady_ms: list[float] = []
    found: list[Trial] = []
    for place, kind in enumerate(kinds):
        await_truth(lambda: sorted(gateways(live).values()) == [False, True], "one serves and one stands by")
        time.sleep(SETTLE_S * randomly.uniform(1, 2))
        steady_ms += caller.steadily(steady)
        following = kinds[place + 1] if place + 1 < len(kinds) else WARM
        cold_file(live.home).unlink(missing_ok=True)
        if following == COLD:
            cold_file(live.home).touch()
        found.append(promote(live, caller, kind))
        last = found[-1]
        print(f"{kind}: promoted after {last.promoted_ms:.0f} ms, first call {last.first_ms:.1f} ms", flush=True)
    return found, steady_ms


def promote(live: Live, caller: Caller, kind: str) -> Trial:
    """Kill the gateway that serves, and time the first call of the one that takes over."""
    roles = gateways(live)
    [serving], [shadow] = ([pid for pid, role in roles.items() if role is wanted] for wanted in (False, True))
    killed_s = time.monotonic()
    os.kill(serving, signal.SIGKILL)
    await_truth(lambda: gateways(live).get(shadow) is False, "the shadow is promoted", 0.002)
    promoted_ms = (time.monotonic() - killed_s) * 1000
    return Trial(kind, promoted_ms, caller.ask(), caller.steadily(AFTER))


def await_truth(truth: Callable[[], bool], what: str, every_s: float = 0.2) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not truth():
        if time.monotonic() > deadline_s:
            raise RuntimeError(f"not so within {PATIENCE_S:g} s: {what}")
        time.sleep(every_s)


def summed_up(trials: Sequence[Trial], steady_ms: Sequence[float]) -> dict[str, Any]:
    """Figures, ratios to the steady p50 among them."""
    p50_ms = statistics.median(steady_ms)
    figures: dict[str, Any] = {"steady_p50_ms": p50_ms, "steady_calls": len(steady_ms)}
    for kind in (WARM, COLD):
        firsts = [trial.first_ms for trial in trials if trial.kind == kind]
        figures |= {
            f"{kind}_first_ms": firsts,
            f"{kind}_first_median_ratio": statistics.median(firsts) / p50_ms,
            f"{kind}_first_worst_ratio": max(firsts) / p50_ms,
            f"{kind}_after_p50_ms": statistics.median(ms for t in trials if t.kind == kind for ms in t.after_ms),
        }
    promoted_ms = [trial.promoted_ms for trial in trials]
    return figures | {"promoted_p50_ms": statistics.median(promoted_ms), "promoted_max_ms": max(promoted_ms)}


def report(trials: Sequence[Trial], steady_ms: Sequence[float]) -> None:
    figures = summed_up(trials, steady_ms)
    p50_ms = figures["steady_p50_ms"]
    rows = [[t.kind, t.promoted_ms, t.first_ms, t.first_ms / p50_ms, statistics.median(t.after_ms)] for t in trials]
    print_table(["shadow", "promoted ms", "first call ms", "by steady p50", "p50 behind it ms"], rows)
    print(f"steady: p50 {p50_ms:.2f} ms of {len(steady_ms)} calls, one at a time")
    title = "a warm shadow's first call, median over trials, by the steady p50"
    floors = [Floor(title, figures["warm_first_median_ratio"], FIRST_FLOOR, "lower")]
    print_report("shadow", figures, floors, emulated=True)


def main() -> None:
    settings = {"RECPOOL_PLAN__GATEWAY__REPLICAS": "1", "RECPOOL_PLAN__GATEWAY__SHADOWS": "1"}
    with live_service("pool", program="benchmarks.shadow_app", **settings) as live:
        trials, steady_ms = measure(
            live, QUICK_TRIALS if is_quick() else TRIALS, QUICK_STEADY if is_quick() else STEADY
        )
    report(trials, steady_ms)


if __name__ == "__main__":
    main()
