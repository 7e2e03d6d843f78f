"""Who is trusted, who is asked, and how much may be asked on top: all without a clock or a replica."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.handle_settings import HandleSettings
from deployments.replica_health import FEWEST, Latencies, ReplicaHealth, RetryBudget

SETTINGS = HandleSettings(hedge_min_ms=10, hedge_max_ms=50, hang_ms=100, faults=3, trial_ms=100)


def health_of(*names: str) -> ReplicaHealth:
    health = ReplicaHealth(SETTINGS)
    health.update(names)
    return health


def answer(health: ReplicaHealth, name: str, at_s: float, took_s: float = 0.005) -> None:
    health.answered(name, health.sent(name, at_s), at_s + took_s)


def fail(health: ReplicaHealth, name: str, at_s: float, times: int = 3) -> None:
    for _ in range(times):
        health.failed(name, health.sent(name, at_s), at_s)


def test_the_replica_with_the_fewest_open_calls_is_chosen():
    health = health_of("a", "b", "c")
    for name in ("a", "a", "b", "c", "c"):
        health.sent(name, 0.0)
    assert health.choose((), 0.01) == "b"


def test_equals_are_taken_in_turn():
    health, chosen = health_of("a", "b", "c"), []
    for number in range(6):
        chosen.append(health.choose((), float(number)))
        answer(health, chosen[-1], float(number))
    assert sorted(chosen[:3]) == sorted(chosen[3:]) == ["a", "b", "c"]


def test_a_call_is_not_given_to_a_replica_it_was_given_to_before():
    health = health_of("a", "b")
    assert health.choose({"a"}, 0.0) == "b"
    assert health.choose({"a", "b"}, 0.0) is None
    assert not health.has_spare({"a", "b"}, 0.0)


def test_a_call_that_finds_a_new_replica_goes_there():
    health = health_of("a")
    health.sent("a", 0.0)
    health.update(["a", "new"])
    assert health.choose((), 0.001) == "new"


def test_failures_in_a_row_make_a_replica_suspect_and_an_answer_between_starts_the_count_again():
    health = health_of("a", "b")
    fail(health, "a", 0.0, times=2)
    answer(health, "a", 0.0)
    fail(health, "a", 0.0, times=2)
    assert health.suspects() == []
    fail(health, "a", 0.0, times=1)
    assert health.suspects() == ["a"]
    assert {health.choose((), 1.0) for _ in range(5)} == {"b"}


def test_a_replica_out_of_reach_is_suspect_at_once():
    health = health_of("a", "b")
    health.unreachable("a", health.sent("a", 0.0), 0.001)
    assert health.suspects() == ["a"]


def test_a_call_open_for_longer_than_the_limit_makes_its_replica_suspect():
    health = health_of("a", "b")
    health.sent("a", 0.0)
    assert health.has_spare({"b"}, 0.099)
    assert not health.has_spare({"b"}, 0.101)
    assert health.suspects() == ["a"]


def test_calls_lost_to_another_replica_count_once_they_had_their_time():
    health = health_of("a", "b")
    for _ in range(5):
        health.given_up("a", health.sent("a", 0.0), 0.049)
    assert health.suspects() == []
    for _ in range(3):
        health.given_up("a", health.sent("a", 0.0), 0.051)
    assert health.suspects() == ["a"]


def test_a_stage_whose_answers_take_long_is_given_longer():
    health = health_of("a", "b")
    for number in range(FEWEST):
        answer(health, "a", float(number), took_s=0.5)
    health.sent("a", 100.0)
    assert health.has_spare({"b"}, 100.0 + 1.9)
    assert not health.has_spare({"b"}, 100.0 + 2.1)


def test_while_this_process_stood_still_nobody_was_silent():
    health = health_of("a", "b")
    call = health.sent("a", 0.0)
    health.excuse(5.0)
    assert health.has_spare({"b"}, 5.09)
    health.answered("a", call, 5.001)
    assert health.suspects() == []


def test_when_all_are_suspect_they_are_called_all_the_same():
    health = health_of("a", "b")
    for name in ("a", "b"):
        fail(health, name, 0.0)
    assert sorted(health.suspects()) == ["a", "b"]
    assert health.choose((), 0.0) in ("a", "b")
    assert health.has_spare({"a"}, 0.0)
    answer(health, "a", 0.0)
    assert health.suspects() == ["b"]


def test_a_suspect_is_tried_after_a_pause_by_one_call_at_a_time():
    health = health_of("a", "b")
    fail(health, "a", 0.0)
    assert health.due_for_trial(0.099) is None
    assert health.due_for_trial(0.101) == "a"
    trial = health.sent("a", 0.101, trial=True)
    assert health.due_for_trial(0.2) is None
    health.answered("a", trial, 0.2)
    assert health.suspects() == []
    assert health.due_for_trial(10.0) is None


def test_each_failed_trial_doubles_the_pause_up_to_two_seconds():
    health, now_s, pauses = health_of("a", "b"), 0.0, []
    fail(health, "a", now_s)
    for _ in range(7):
        due_s = now_s
        while health.due_for_trial(due_s) is None:
            due_s += 0.01
        pauses.append(round(due_s - now_s, 1))
        now_s = due_s
        health.given_up("a", health.sent("a", now_s, trial=True), now_s + 0.1)
        now_s += 0.1
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0]


def test_the_pause_is_short_again_after_a_trial_that_was_answered():
    health = health_of("a", "b")
    fail(health, "a", 0.0)
    health.failed("a", health.sent("a", 1.0, trial=True), 1.0)
    health.answered("a", health.sent("a", 2.0, trial=True), 2.0)
    fail(health, "a", 3.0)
    assert health.due_for_trial(3.101) == "a"


def test_a_replica_that_left_is_forgotten_and_what_its_calls_tell_is_ignored():
    health = health_of("a", "b")
    call = health.sent("a", 0.0)
    health.update(["b"])
    health.unreachable("a", call, 0.1)
    assert health.suspects() == []
    assert health.choose((), 0.1) == "b"


def test_a_hedge_waits_its_longest_until_enough_was_measured_then_twice_what_is_usual():
    health = health_of("a")
    assert health.hedge_after_s == pytest.approx(0.05)
    for number in range(100):
        answer(health, "a", float(number), took_s=0.012)
    assert health.hedge_after_s == pytest.approx(0.024)


@pytest.mark.parametrize(("took_s", "expected_s"), [(0.0001, 0.01), (1.0, 0.05)])
def test_a_hedge_keeps_within_its_bounds(took_s, expected_s):
    health = health_of("a")
    for number in range(FEWEST):
        answer(health, "a", 10.0 * number, took_s=took_s)
    assert health.hedge_after_s == pytest.approx(expected_s)


def test_quantiles_are_those_of_the_latest_answers():
    latencies = Latencies()
    for _ in range(500):
        latencies.observe(9.0)
    for number in range(256):
        latencies.observe(float(number))
    assert latencies.quantile_s(0.95) == 243.0  # 95% of 0..255 lie below it
    assert latencies.quantile_s(1.0) == 255.0


@given(st.lists(st.booleans(), max_size=400), st.floats(0.01, 1), st.integers(1, 50))
def test_extra_attempts_never_exceed_the_burst_and_the_share(steps, share, burst):
    budget, calls, extra = RetryBudget(share, burst), 0, 0
    for is_call in steps:
        if is_call:
            budget.pay_in()
            calls += 1
        else:
            extra += budget.take()
        assert extra <= burst + share * calls + 1e-9


def test_the_budget_is_given_out_in_full():
    budget = RetryBudget(0.25, 2)
    assert [budget.take() for _ in range(3)] == [True, True, False]
    for _ in range(4):
        budget.pay_in()
    assert [budget.take() for _ in range(2)] == [True, False]


NAMES = ("a", "b", "c")
EVENTS = st.tuples(
    st.sampled_from(["answered", "failed", "unreachable", "given_up", "send", "trial", "leave", "come", "excuse"]),
    st.sampled_from(NAMES),
    st.floats(0, 0.3),
)


@given(st.lists(EVENTS, max_size=60))
def test_whatever_happens_a_replica_that_is_there_is_chosen_and_trusted_ones_first(events):
    health, present, now_s = health_of(*NAMES), set(NAMES), 0.0
    open_calls: dict[str, list[int]] = {name: [] for name in NAMES}
    for what, name, passed_s in events:
        now_s += passed_s
        if what in ("leave", "come"):
            present = present - {name} if what == "leave" else present | {name}
            health.update(present)
            open_calls = {each: calls if each in present else [] for each, calls in open_calls.items()}
        elif what in ("send", "trial"):
            open_calls[name].append(health.sent(name, now_s, trial=what == "trial"))
        elif what == "excuse":
            health.excuse(now_s)
        elif open_calls[name]:
            getattr(health, what)(name, open_calls[name].pop(0), now_s)
        chosen = health.choose((), now_s)
        assert (chosen in present) if present else (chosen is None)
        trusted = present - set(health.suspects())
        assert not trusted or chosen in trusted
        due = health.due_for_trial(now_s)
        assert due is None or (due in health.suspects() and trusted)
