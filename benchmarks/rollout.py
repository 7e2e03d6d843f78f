"""Rolling a release out under load: what callers notice of a good one, and how soon a bad one is gone.

A live service under open-loop load. A copy of the champion goes through gate, warm-up, shadow, canary and promotion:
no request may fail, and the p99 of each stage is set against that before (which is set against itself: the noise). Then
releases made worse on purpose: one that takes every item for another must be stopped at the gate; one that is slow, one
that returns nothing and one that raises get users at once, and must be rolled back by themselves.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx

from benchmarks.live import Live, live_service
from benchmarks.load import Load, poisson, start
from benchmarks.phases import COLUMNS, SETTLE_S, Phase, Rolled, Watch, noticed, worst_p99_ms
from benchmarks.report import Floor, is_quick, print_report, print_table
from benchmarks.worse_releases import mislabelled, raising, republish, returning_nothing, slow
from deployments.releases.views import ROLLOUT
from pool.repository import ReleaseRepository, open_releases

RATE = 60.0
"""Requests a second: what half of the users of a canary makes judgeable within seconds, and a small machine bears."""
BEFORE_S, QUICK_BEFORE_S = 30.0, 8.0
HOLD_S, QUICK_HOLD_S = 20.0, 5.0
LONGEST_S = 240.0
"""Of one rollout; reading a data set and evaluating two releases at idle priority take most of it."""
QUICK_GATE = {"RECPOOL_RELEASES__GATE__USERS": "60", "RECPOOL_RELEASES__GATE__MOST_ROWS": "3000"}
CANARY = [0.05, 0.25, 0.5]
BAD: dict[str, Callable[[Path], None]] = {"slow": slow, "returns nothing": returning_nothing, "raises": raising}
BACK_FLOOR_S = 30.0
P99_FLOOR = 1.25
FULL = b'"returned":10,'


def main() -> None:
    before_s, hold_s = (QUICK_BEFORE_S, QUICK_HOLD_S) if is_quick() else (BEFORE_S, HOLD_S)
    with live_service(**(QUICK_GATE if is_quick() else {})) as live:
        repository = open_releases(live.settings)
        champion = str(repository.champion())
        calls = live.requests(2_000, seed=3)
        stages = good_rollout(live, repository, champion, calls, before_s, hold_s)
        gate = rolled(live, {"version": republish(repository, champion, mislabelled)})
        bad = {name: bad_rollout(live, repository, champion, calls, change) for name, change in BAD.items()}
    report(stages, gate, bad)


def good_rollout(
    live: Live, repository: ReleaseRepository, champion: str, calls: list[bytes], before_s: float, hold_s: float
) -> list[dict[str, Any]]:
    """What callers notice at each stage of a good release."""
    version = republish(repository, champion)
    plan = {"version": version, "hold_s": hold_s, "canary": CANARY, "least_requests": 20,
            "begin_with": "shadow" if is_quick() else "gate"}  # fmt: skip
    with start(load(live, calls, SETTLE_S + 3 * before_s + LONGEST_S)) as running:
        time.sleep(SETTLE_S + before_s)
        middle_s = time.monotonic()
        time.sleep(before_s)
        rollout = rolled(live, plan)
        after_s = time.monotonic()
        time.sleep(before_s)
        outcomes = running.stop()
    if rollout.view["phase"] != "promoted":
        raise RuntimeError(f"the good release was not promoted: {rollout.view}")
    phases = [
        Phase("before", middle_s - before_s, middle_s), Phase("before again", middle_s, middle_s + before_s),
        *rollout.phases, Phase("after", after_s, after_s + before_s),
    ]  # fmt: skip
    return [noticed(outcomes, phase) for phase in phases if phase.ended_s > phase.began_s]


def bad_rollout(
    live: Live, repository: ReleaseRepository, champion: str, calls: list[bytes], change: Callable[[Path], None]
) -> dict[str, Any]:
    """A release that gets a quarter of the users at once; what they saw, and when it was gone."""
    now = str(repository.champion())
    plan = {"version": republish(repository, champion, change), "begin_with": "canary", "canary": [0.25]}
    with start(load(live, calls, LONGEST_S)) as running:
        time.sleep(3)
        rollout = rolled(live, {**plan, "hold_s": 60.0})
        time.sleep(3)
        outcomes = running.stop()
    assert repository.champion() == now
    phase = Phase("canary", rollout.phases[-1].ended_s - rollout.exposed_s, rollout.phases[-1].ended_s)
    return {**noticed(outcomes, phase), "phase": rollout.view["phase"], "back_s": rollout.exposed_s,
            "reason": rollout.view["reason"]}  # fmt: skip


def load(live: Live, calls: list[bytes], seconds: float) -> Load:
    return Load(live.port, calls, poisson(RATE, seconds, seed=11), contains=FULL)


def rolled(live: Live, plan: dict[str, Any]) -> Rolled:
    """Begin a rollout and follow it to its end. Raises RuntimeError when it cannot begin or does not end."""
    began_s = time.monotonic()
    begun = httpx.post(f"http://127.0.0.1:{live.port}{ROLLOUT}", json=plan, timeout=30, trust_env=False)
    if begun.status_code != 200:
        raise RuntimeError(f"{ROLLOUT}: {begun.status_code} {begun.text}")
    return Watch(live, plan["version"]).until_ended(began_s + LONGEST_S)


def report(stages: list[dict[str, Any]], gate: Rolled, bad: dict[str, dict[str, Any]]) -> None:
    print("A good release, by stage")
    print_table(COLUMNS, [[row[name] for name in COLUMNS] for row in stages])
    print(f"\nA release that takes every item for another: {gate.view['phase']}: {gate.view['reason']}\n")
    print("Releases that get a quarter of the users at once")
    more = ("back_s", "requests", "failed", "short", "p50_ms", "p99_ms", "reason")
    print_table(("release", *more), [[name, *(row[key] for key in more)] for name, row in bad.items()])
    usual = [row["p99_ms"] for row in stages if row["stage"].startswith("before")]
    worst = worst_p99_ms(stages) / usual[0]
    everything = [*stages, *bad.values()]
    floors = [
        Floor("failed requests", sum(row["failed"] for row in everything), 0, "lower"),
        Floor("worst p99 of a stage over before", worst, P99_FLOOR, "lower"),
        Floor("the mislabelled one stopped at the gate", float(gate.view["phase"] == "stopped"), 1),
        Floor("bad ones rolled back", float(sum(row["phase"] == "rolled_back" for row in bad.values())), len(bad)),
        Floor("slowest rollback, s", max(row["back_s"] for row in bad.values()), BACK_FLOOR_S, "lower"),
    ]
    figures = {"stages": stages, "gate": gate.view["reason"], "bad": bad, "before_over_before": usual[1] / usual[0]}
    print_report("rollout", figures, floors)


if __name__ == "__main__":
    main()
