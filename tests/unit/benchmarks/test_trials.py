"""What a trial's figure is made of: the requests that a fault could have hit, and how long each waited."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.load import Outcomes
from benchmarks.trials import TIMEOUT_MS, Fault, Trials, judge, losses

STARTED_S = 1_000.0


def outcomes(*requests: tuple[float, float, int, bool]) -> Outcomes:
    """Requests as (sent, seconds until the answer, status, whether it was a full one); nan: no answer."""
    sent, took, status, full = (np.array(column) for column in zip(*requests, strict=True))
    nothing = np.zeros(len(sent))
    return Outcomes(STARTED_S, sent, took, status.astype(np.int16), nothing.astype(bool), full.astype(bool), nothing)


def judged(*requests: tuple[float, float, int, bool], at_s: float = 10.0) -> Trials:
    found: dict[tuple[str, str], Trials] = {}
    judge(outcomes(*requests), [Fault("stage", "SIGKILL", "fine", STARTED_S + at_s)], found)
    return found["stage", "SIGKILL"]


def test_a_request_under_way_waits_from_the_fault_and_a_later_one_from_when_it_was_sent():
    assert judged((9.9, 0.15, 200, True)).answered_ms == pytest.approx([50])
    assert judged((10.5, 0.02, 200, True)).answered_ms == pytest.approx([20])


def test_the_worst_wait_decides_and_others_than_those_hit_do_not_count():
    trials = judged((8.0, 1.9, 200, True), (9.99, 0.03, 200, True), (10.2, 0.1, 200, True), (11.01, 5.0, 200, True))
    assert trials.requests == 2
    assert trials.answered_ms == pytest.approx([100])


def test_a_degraded_answer_is_an_answer_but_no_full_one():
    trials = judged((10.1, 0.02, 200, False))
    assert trials.answered_ms == pytest.approx([20])
    assert trials.full_ms == pytest.approx([TIMEOUT_MS])
    assert (trials.degraded, trials.lost) == (1, 0)


def test_a_request_without_an_answer_is_lost_and_has_waited_for_ever():
    trials = judged((9.9, np.nan, 0, False))
    assert trials.answered_ms == [np.inf]
    assert trials.lost == 1


def test_a_lost_request_is_told_with_the_fault_before_it():
    found = outcomes((9.9, 0.15, 200, True), (9.95, 0.1, 503, False), (12.0, np.nan, 0, False), (1.0, 0.1, 503, False))
    faults = [Fault("stage", "SIGKILL", "fine", STARTED_S + 10.0)]
    assert losses(found, faults) == [
        "lost: sent -0.05 s after SIGKILL of fine, status 503 after 100 ms",
        "lost: sent 2.00 s after SIGKILL of fine, status 0 after 0 ms",
        "lost: sent before any fault, status 503 after 100 ms",
    ]
