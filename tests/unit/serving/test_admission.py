from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import Overloaded
from configs.overload_settings import OverloadSettings
from serving.admission import Admission, BatchCosts
from serving.preparation import Row
from serving.priority import Priority
from serving.quality import QualityController

HIGH, NORMAL, LOW = Priority
ROW_MS = 2.0
NOW_S = 50.0


def make(lanes: int = 1, max_rows: int = 8, **settings) -> Admission:
    """An admission whose rows have all taken ROW_MS, in batches of every size; nothing waits or runs."""
    chosen = OverloadSettings(**{"max_wait_ms": 10_000, **settings})
    admission = Admission(chosen, max_rows, lanes, QualityController(chosen))
    for rows in range(1, max_rows + 1):
        run(admission, [NORMAL] * rows, at_s=rows)
    return admission


def run(admission: Admission, priorities, at_s: float, row_ms: float = ROW_MS) -> None:
    rows = [Row(at_s + 1, priority=priority) for priority in priorities]
    batch = admission.started("recommend", rows, 0.0, at_s)
    admission.done(batch, at_s + len(rows) * row_ms / 1000, True)


def wait(admission: Admission, *priorities: Priority, at_s: float = NOW_S) -> None:
    for priority in priorities:
        admission.queued("recommend", priority, at_s)


def predicted(admission: Admission, priority: Priority, at_s: float = NOW_S) -> float:
    return admission.predicted_ms("recommend", priority, at_s)


def admit(admission: Admission, priority: Priority, left_s: float, waited_s: float = 0.0, at_s: float = NOW_S) -> bool:
    return admission.admit("recommend", priority, at_s + left_s, at_s - waited_s, at_s)


def test_the_cost_of_a_batch_is_the_line_that_numpy_fits():
    sizes, took = np.array([1, 2, 4, 8, 3]), np.array([3.1, 4.0, 6.2, 9.8, 5.1])
    costs = BatchCosts(keep=1.0)
    for n, ms in zip(sizes, took, strict=True):
        costs.observe(int(n), float(ms))
    slope, fixed = np.polyfit(sizes, took, 1)
    for n in (1, 5, 20):
        assert costs.expected_ms(n) == pytest.approx(fixed + slope * n)


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0.01, 1_000)), min_size=1, max_size=50), st.floats(0.01, 1_000))
def test_costs_never_fall_with_rows_and_a_batch_is_kept_within_its_limit(seen, limit_ms):
    costs = BatchCosts()
    for rows, took_ms in seen:
        costs.observe(rows, took_ms)
    expected = [costs.expected_ms(rows) for rows in range(1, 65)]
    assert expected[0] >= 0 and all(a <= b + 1e-9 for a, b in zip(expected, expected[1:], strict=False))
    within = costs.rows_within(limit_ms)
    assert within >= 1
    assert within == 1 or costs.expected_ms(within) <= limit_ms * 1.001


def test_costs_follow_a_change():
    costs = BatchCosts()
    for took_ms in [10.0] * 100 + [1.0] * 200:
        costs.observe(1, took_ms)
    assert costs.expected_ms(1) == pytest.approx(1, abs=0.1)


def test_a_row_is_predicted_to_wait_for_its_class_and_those_above_and_not_for_those_below():
    admission = make()
    wait(admission, *[HIGH] * 2, *[NORMAL] * 3, *[LOW] * 4)
    # Itself and those in front, at 2 ms each; nobody above took time lately.
    assert predicted(admission, HIGH) == pytest.approx((1 + 2) * ROW_MS)
    assert predicted(admission, NORMAL) == pytest.approx((1 + 5) * ROW_MS)
    assert predicted(admission, LOW) == pytest.approx((1 + 9) * ROW_MS, rel=1e-3)


def test_what_runs_counts_with_what_is_left_of_it():
    admission = make()
    admission.started("recommend", [Row(0.0)] * 4, 0.0, NOW_S)
    assert predicted(admission, HIGH, NOW_S) == pytest.approx(4 * ROW_MS + ROW_MS)
    assert predicted(admission, HIGH, NOW_S + 0.003) == pytest.approx(4 * ROW_MS - 3 + ROW_MS)
    assert predicted(admission, HIGH, NOW_S + 1) == pytest.approx(ROW_MS)


def test_two_lanes_take_half_the_time():
    one, two = make(lanes=1), make(lanes=2)
    for admission in (one, two):
        wait(admission, *[NORMAL] * 9)
    assert predicted(two, NORMAL) == pytest.approx(predicted(one, NORMAL) / 2)


def test_what_those_above_took_lately_is_not_there_for_those_below():
    admission = make()
    # High rows took 40% of the time over many horizons.
    for n in range(1_000):
        run(admission, [HIGH] * 2, at_s=20 + n * 0.01)
    at_s = 30.0
    wait(admission, *[LOW] * 4, at_s=at_s)
    assert predicted(admission, LOW, at_s) == pytest.approx(5 * ROW_MS / 0.6, rel=0.03)
    assert predicted(admission, HIGH, at_s) == pytest.approx(ROW_MS)


def test_a_row_that_would_be_late_is_not_queued():
    admission = make()
    wait(admission, *[NORMAL] * 49)
    # 100 ms predicted.
    assert admit(admission, NORMAL, left_s=0.101)
    assert not admit(admission, NORMAL, left_s=0.040)
    assert admit(admission, HIGH, left_s=0.040)


def test_low_priority_that_would_be_late_is_refused_at_once_with_the_time_to_come_back():
    admission = make()
    wait(admission, *[NORMAL] * 49)
    with pytest.raises(Overloaded, match="timeout_ms") as refused:
        admit(admission, LOW, left_s=0.040)
    assert refused.value.retry_after_s == pytest.approx(0.060)
    assert admission.refused[LOW] == 1


@pytest.mark.parametrize("priority", Priority)
def test_nobody_is_refused_who_has_waited(priority):
    admission = make()
    wait(admission, *[priority] * 49)
    assert not admit(admission, priority, left_s=0.040, waited_s=0.011)
    assert admission.refused.total() == 0


def test_rows_that_would_be_late_cost_quality_before_the_queue_shows_it():
    quality = QualityController(OverloadSettings())
    admission = Admission(OverloadSettings(), 8, 1, quality)
    run(admission, [NORMAL], at_s=20, row_ms=100)
    wait(admission, *[NORMAL] * 5)
    for n in range(5):
        admit(admission, LOW, left_s=0.040, at_s=NOW_S + n, waited_s=1)
    assert quality.step == 0
    admit(admission, NORMAL, left_s=0.040, at_s=NOW_S + 9)
    assert quality.step == 1


def test_nobody_is_made_to_wait_longer_than_is_allowed_however_patient():
    admission = make(max_wait_ms=50)
    wait(admission, *[NORMAL] * 30)
    assert not admit(admission, NORMAL, left_s=10)


@given(st.floats(0.1, 100_000), st.floats(-1, 1), st.sampled_from(Priority), st.integers(1, 20))
def test_an_idle_service_has_time_for_everybody(row_ms, left_s, priority, batches):
    admission = make()
    for n in range(batches):
        run(admission, [HIGH], at_s=20 + n, row_ms=row_ms)
    assert admit(admission, priority, left_s)


@given(st.lists(st.sampled_from(Priority), max_size=60), st.floats(0.001, 0.2))
def test_being_late_is_monotone_in_priority_and_in_what_waits(waiting, left_s):
    admission = make()
    before = dict.fromkeys(Priority, True)
    for each in waiting:
        wait(admission, each)
        now = {priority: admit(admission, priority, left_s, waited_s=1) for priority in Priority}
        assert now[HIGH] >= now[NORMAL] >= now[LOW]
        assert all(before[priority] >= now[priority] for priority in Priority)
        before = now


def test_batches_are_short_while_urgent_requests_come_in_and_full_otherwise():
    admission = make(urgent_batch_ms=6.5, urgent_memory_s=1)
    assert admission.most_rows("recommend", NOW_S) == 8
    wait(admission, HIGH)
    admission.dequeued("recommend", HIGH)
    assert admission.most_rows("recommend", NOW_S + 0.9) == 3
    assert admission.most_rows("recommend", NOW_S + 1.1) == 8


def test_a_batch_holds_a_row_however_long_one_takes():
    admission = make(urgent_batch_ms=0.1)
    wait(admission, HIGH)
    assert admission.most_rows("recommend", NOW_S) == 1


def test_kinds_of_work_have_costs_of_their_own_and_share_the_time():
    admission = make()
    batch = admission.started("rank", [Row(0.0)], 0.0, 20.0)
    admission.done(batch, 20.030, True)
    wait(admission, NORMAL)
    assert admission.predicted_ms("rank", NORMAL, NOW_S) == pytest.approx(30 + ROW_MS)


def test_a_batch_that_was_given_up_teaches_nothing():
    admission = make()
    batch = admission.started("recommend", [Row(0.0)] * 8, 0.0, 20.0)
    admission.done(batch, 20.0001, False)
    assert predicted(admission, NORMAL) == pytest.approx(ROW_MS)
