from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.overload_settings import OverloadSettings
from serving.priority import Priority
from serving.quality import FULL, LADDER, STEEPEST, Limits, QualityController

HIGH, NORMAL, LOW = Priority
SETTINGS = OverloadSettings(shrink_above_ms=10, restore_below_ms=3, shrink_dwell_s=0.2, restore_dwell_s=1)
TICK_S = 0.02
waits = st.lists(st.floats(0, 100), max_size=300)


def drive(pressure, controller: QualityController | None = None, start_s: float = 0.0) -> list[int]:
    """Steps after each wait of a sequence, a tick apart."""
    controller = controller or QualityController(SETTINGS)
    steps = []
    for n, wait_ms in enumerate(pressure):
        controller.observe(wait_ms, start_s + n * TICK_S)
        steps.append(controller.step)
    return steps


def spends(limits: Limits) -> tuple[int, float]:
    return len(limits.stages), limits.candidates


def ticks(seconds: float) -> int:
    return round(seconds / TICK_S)


def test_the_ladder_shrinks_candidates_then_skips_fine_then_coarse_then_everything():
    assert LADDER[0] == FULL == Limits(1.0, frozenset({"recall", "coarse", "fine"}))
    stages = [sorted(limits.stages) for limits in LADDER]
    assert [stages[i] for i in range(len(stages)) if i == 0 or stages[i] != stages[i - 1]] == [
        ["coarse", "fine", "recall"],
        ["coarse", "recall"],
        ["recall"],
        [],
    ]
    shares = [limits.candidates for limits in LADDER if "fine" in limits.stages]
    assert shares == sorted(set(shares), reverse=True)
    assert all(above.stages >= below.stages for above, below in zip(LADDER, LADDER[1:], strict=False))


@pytest.mark.parametrize(("share", "of", "gives"), [(1.0, 500, 500), (0.3, 100, 30), (0.3, 1, 1), (0.5, 0, 0)])
def test_a_share_leaves_at_least_one_candidate_of_any(share, of, gives):
    assert Limits(share).share_of(of) == gives


def test_without_pressure_everybody_gets_full_quality():
    controller = QualityController(SETTINGS)
    drive([2.9] * 500, controller)
    assert {controller.limits(priority, 10.0) for priority in Priority} == {FULL}


@given(waits)
def test_low_degrades_first_and_high_last(pressure):
    controller = QualityController(SETTINGS)
    for n, wait_ms in enumerate(pressure):
        controller.observe(wait_ms, n * TICK_S)
        high, normal, low = (spends(controller.limits(priority, n * TICK_S)) for priority in Priority)
        assert high[0] >= normal[0] >= low[0]
        assert high == spends(FULL) or low == spends(LADDER[-1]) or normal != spends(FULL)


def test_lasting_pressure_reaches_the_last_rung_for_all():
    controller = QualityController(SETTINGS)
    lasts_s = STEEPEST * 0.2 + 2
    drive([50.0] * ticks(lasts_s), controller)
    assert controller.limits(HIGH, lasts_s) == LADDER[-1]


@pytest.mark.parametrize(("wait_ms", "dwell_s"), [(10.1, 0.2), (20.4, 0.1), (51.0, 0.04)])
def test_the_longer_rows_wait_the_sooner_steps_follow(wait_ms, dwell_s):
    steps = drive([wait_ms] * ticks(1.0))
    changes = [n for n in range(1, len(steps)) if steps[n] != steps[n - 1]]
    assert len(changes) >= 4
    assert [b - a for a, b in zip(changes, changes[1:], strict=False)] == [ticks(dwell_s)] * (len(changes) - 1)


@given(waits)
def test_no_step_follows_another_within_its_dwell(pressure):
    steps = drive(pressure)
    changes = [n for n in range(1, len(steps)) if steps[n] != steps[n - 1]]
    for before, after in zip(changes, changes[1:], strict=False):
        is_up = steps[after] < steps[after - 1]
        # No wait is longer than ten times what is allowed.
        assert (after - before) * TICK_S >= (1 if is_up else 0.2 / 10) - 1e-9
        assert abs(steps[after] - steps[after - 1]) == 1


@given(st.floats(3.01, 9.99), st.floats(0, 3))
def test_between_the_thresholds_it_stays_where_it_is(wait_ms, overloaded_s):
    controller = QualityController(SETTINGS)
    # The average takes a while to come down from 50 ms.
    steps = drive([50.0] * ticks(overloaded_s) + [wait_ms] * ticks(12), controller)
    assert len(set(steps[-ticks(10) :])) == 1


@given(waits)
def test_full_quality_returns_when_the_pressure_is_gone(pressure):
    controller = QualityController(SETTINGS)
    drive(pressure, controller)
    drive([0.0] * ticks(STEEPEST + 3), controller, start_s=len(pressure) * TICK_S)
    assert controller.step == 0


@given(waits)
def test_idle_time_brings_quality_back_too(pressure):
    controller = QualityController(SETTINGS)
    drive(pressure, controller)
    later_s = len(pressure) * TICK_S + STEEPEST + 1
    assert controller.limits(LOW, later_s) == FULL


@given(st.floats(0, 100), st.floats(0, 100), st.integers(1, 600))
def test_more_pressure_never_means_more_quality(one, other, count):
    less, more = sorted((one, other))
    assert drive([less] * count)[-1] <= drive([more] * count)[-1]


def test_a_single_burst_is_no_overload():
    assert max(drive([0.5] * 100 + [60.0] + [0.5] * 100)) <= 1
