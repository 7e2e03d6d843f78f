from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from configs.pool_settings import BreakerSettings
from pool.policy.breaker import judge

SETTINGS = BreakerSettings(crashes=4, window_s=100, first_wait_s=2, longest_wait_s=5)


def test_work_that_never_crashed_starts():
    assert judge((), 10, SETTINGS).kind == "start"


def test_waits_double_with_each_crash_up_to_the_longest():
    for crashes, wait_s in (((0,), 2), ((0, 10), 4), ((0, 10, 20), 5)):
        last = crashes[-1]
        early, late = judge(crashes, last + wait_s - 0.01, SETTINGS), judge(crashes, last + wait_s, SETTINGS)
        assert (early.kind, early.until_s) == ("wait", last + wait_s)
        assert late.kind == "start"


def test_the_last_crash_of_too_many_parks_it_with_the_count():
    found = judge((0, 10, 20, 30), 35, SETTINGS)
    assert found.kind == "park"
    assert "4 times within 100 s" in found.reason


def test_crashes_before_the_window_are_forgiven():
    assert judge((0, 10, 20, 30), 100, SETTINGS).kind == "start"
    assert judge((0,), 100, SETTINGS).kind == "start"


def test_two_hundred_crashes_in_a_row_do_not_overflow():
    patient = BreakerSettings(crashes=1000, window_s=10_000, first_wait_s=1, longest_wait_s=60)
    assert judge(tuple(range(200)), 199, patient).until_s == 259


@given(crashes=st.lists(st.floats(0, 200), max_size=8), now_s=st.floats(200, 400), shuffled=st.randoms())
def test_the_order_of_crashes_does_not_matter_and_a_wait_ends(crashes, now_s, shuffled):
    mixed = list(crashes)
    shuffled.shuffle(mixed)
    found = judge(crashes, now_s, SETTINGS)
    assert judge(mixed, now_s, SETTINGS) == found
    recent = sum(now_s - crash_s < 100 for crash_s in crashes)
    assert (found.kind == "park") == (recent >= 4)
    if found.until_s is not None:
        assert now_s < found.until_s <= now_s + 5
