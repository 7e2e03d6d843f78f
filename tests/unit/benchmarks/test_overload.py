"""The overload benchmark's arithmetic, on outcomes made by hand."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.load import Outcomes, post
from benchmarks.overload import DEADLINE_MS, LOADS, Seen, _stating, floors
from serving.priority import Priority

HIGH, NORMAL, LOW = Priority


def seen(*calls: tuple[Priority, int, float, bool], seconds: float = 2.0) -> Seen:
    """Calls as (priority, status, latency in ms, whether the answer was of full quality)."""
    outcomes = Outcomes.empty(np.zeros(len(calls)), 0.0, keep_bodies=False)
    outcomes.status[:] = [status for _, status, _, _ in calls]
    outcomes.latency_s[:] = [ms / 1000 for _, _, ms, _ in calls]
    outcomes.found[:] = [full for *_, full in calls]
    return Seen(len(calls) / seconds, seconds, outcomes, np.array([priority for priority, *_ in calls]))


def test_goodput_counts_answers_within_the_deadline_only():
    load = seen(
        (HIGH, 200, 10, True), (NORMAL, 200, DEADLINE_MS + 1, True), (NORMAL, 200, 20, False), (LOW, 429, 2, False),
        (LOW, 503, 400, False), (LOW, 0, 5_000, False),
    )  # fmt: skip
    figures = load.figures()
    assert load.goodput == figures["goodput_per_s"] == 1.0
    assert load.full_goodput == figures["full_per_s"] == 0.5
    assert figures["refused"] == pytest.approx(1 / 6)
    assert figures["late_or_lost"] == pytest.approx(3 / 6)
    assert figures["degraded"] == pytest.approx(1 / 3)
    assert figures["refusal_p99_ms"] == pytest.approx(2)
    assert (figures["high_p99_ms"], figures["high_good"]) == (pytest.approx(10), 1.0)
    assert (figures["normal_good"], figures["normal_degraded"]) == (0.5, 0.5)
    assert (figures["low_good"], figures["low_p99_ms"]) == (0.0, 0.0)


def test_the_floors_compare_three_times_capacity_with_the_peak_and_with_half():
    figures = {"goodput_per_s": 100.0, "high_p99_ms": 20.0, "refused": 0.0, "refusal_p99_ms": 0.0}
    by_load = {load: dict(figures) for load in LOADS}
    by_load[1.0]["goodput_per_s"] = 125.0
    by_load[0.5]["high_p99_ms"] = 10.0
    by_load[2.0] |= {"refused": 0.5, "refusal_p99_ms": 4.0}
    goodput, urgent, refusal = floors(by_load)
    assert (goodput.value, goodput.met) == (pytest.approx(0.8), False)
    assert (urgent.value, urgent.met) == (pytest.approx(2.0), False)
    assert (refusal.value, refusal.met) == (4.0, True)


def test_a_call_states_its_priority_among_its_headers_and_keeps_its_body():
    call = _stating(post("/v1/recommend", b'{"k": 1}'), HIGH)
    head, body = call.split(b"\r\n\r\n")
    assert b"\r\nX-Priority: high" in head
    assert body == b'{"k": 1}'
