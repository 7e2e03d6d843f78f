"""Counters of replicas become what happened since: nothing is counted twice, and no replica's end loses requests."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.policy.autoscale.loads import Load, LoadBook, Outside


def load(replica: str, arrived: float, queued: float = 0, late: float = 0, busy_s: float = 0, cores: int = 1) -> Load:
    return Load("app", "gateway", replica, arrived, queued, late, busy_s, cores)


def book(*loads: Load) -> LoadBook:
    """One that has told its first signals."""
    made = LoadBook(ttl_s=5.0)
    for each in loads:
        made.take(each, 0.0)
    assert made.signals(1_000.0, 0.0, 1, 0) is None, "it is not known since when"
    return made


def test_counters_of_all_replicas_are_added_up():
    made = book(load("a", 100, busy_s=1.0), load("b", 7, busy_s=1.0))
    made.take(load("a", 130, 2, 3, 1.5), 2.0)
    made.take(load("b", 17, 4, 1, 2.5), 2.0)
    seen = made.signals(1_002.0, 2.0, 2, 1)
    assert seen is not None
    assert (seen.at_s, seen.interval_s, seen.running, seen.starting) == (1_002.0, 2.0, 2, 1)
    assert (seen.arrived, seen.queued, seen.violations) == (40, 6, 4)
    assert seen.busy == pytest.approx((0.5 + 1.5) / 4)


def test_a_replica_that_starts_again_counts_from_nothing():
    made = book(load("a", 100, late=5, busy_s=9))
    made.take(load("a", 30, late=1, busy_s=0.5), 1.0)
    seen = made.signals(1_001.0, 1.0, 1, 0)
    assert seen is not None
    assert (seen.arrived, seen.violations) == (30, 1)


def test_what_a_new_replica_counted_before_it_was_heard_of_is_not_counted():
    made = book(load("a", 0))
    made.take(load("b", 5_000), 1.0)
    made.take(load("b", 5_010), 2.0)
    seen = made.signals(1_002.0, 2.0, 2, 0)
    assert seen is not None
    assert seen.arrived == 10


def test_the_queue_of_a_replica_that_went_silent_is_forgotten_and_its_requests_are_not():
    made = book(load("a", 0))
    made.take(load("a", 60, queued=9), 1.0)
    seen = made.signals(1_010.0, 10.0, 1, 0)
    assert seen is not None
    assert (seen.arrived, seen.queued) == (60, 0)
    assert made.app is None


def test_calls_that_the_ingress_refused_or_holds_count_too():
    made = LoadBook(5.0)
    made.take(load("a", 0), 0.0)
    assert made.signals(0.0, 0.0, 1, 0, Outside(1_000, 0)) is None
    made.take(load("a", 50, queued=2), 1.0)
    seen = made.signals(1.0, 1.0, 1, 0, Outside(1_200, 40))
    assert seen is not None
    assert (seen.arrived, seen.queued) == (200, 42)


@pytest.mark.parametrize("outside", [Outside(3, 0), None])
def test_an_ingress_that_started_again_or_does_not_answer_leaves_what_replicas_count(outside):
    made = LoadBook(5.0)
    made.take(load("a", 0), 0.0)
    made.signals(0.0, 0.0, 1, 0, Outside(1_000, 0))
    made.take(load("a", 50), 1.0)
    seen = made.signals(1.0, 1.0, 1, 0, outside)
    assert seen is not None
    assert seen.arrived == 50


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 50), st.booleans()), max_size=40))
def test_however_reports_and_decisions_interleave_every_arrival_is_counted_once(events):
    counted, arrived, made = 0.0, dict.fromkeys("abc", 0), book(*(load(name, 0) for name in "abc"))
    for at_s, (name, more, decides) in enumerate(events, start=1):
        arrived[name] += more
        made.take(load(name, arrived[name]), at_s / 10)
        if decides:
            seen = made.signals(at_s, at_s / 10, 3, 0)
            counted += seen.arrived if seen else 0
    seen = made.signals(1e6, 4.5, 3, 0)
    assert seen is not None
    assert counted + seen.arrived == sum(arrived.values())
