"""The world that autoscalers are compared in: conservation, closed forms, and arms that do what their models do."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.autoscale.arms import (
    KPA,
    ORACLE,
    RECPOOL,
    SEASONAL,
    SERVE,
    STATIC,
    ByPlan,
    Fixed,
    Ground,
    Kpa,
    made,
    settings_of,
)
from benchmarks.autoscale.demands import CASES, Case, stretch, swing
from benchmarks.autoscale.figures import floors, paired_ratio, row_of, summary
from benchmarks.autoscale.foretold import foretell
from benchmarks.autoscale.serve_policy import ServePolicy
from benchmarks.autoscale.tuning import best_of
from benchmarks.autoscale.world import (
    LONGEST_WAIT_S,
    Deployment,
    Played,
    Seen,
    answer,
    changed,
    highest_ahead,
    needed,
    play,
)
from configs.forecast_settings import ForecastSettings
from pool.policy.autoscale.signals import ServiceCurve, Signals
from pool.traces import CountTrace

PLACE = Deployment(ServiceCurve(((50.0, 50.0), (80.0, 100.0), (100.0, 400.0)), start_s=60.0), slo_ms=100.0, most=10)


def test_within_capacity_the_share_that_is_late_follows_the_measured_tail():
    late, line, _ = answer(PLACE, running=2, arrived=1_600, line=0, interval_s=10)
    assert (late, line) == (pytest.approx(1_600 * 0.01), 0), "p99 is the objective at 80 a second each"
    late, _, ongoing = answer(PLACE, running=2, arrived=1_000, line=0, interval_s=10)
    assert late == pytest.approx(1_000 * 0.01**2), "an exponential tail: twice the p99 is passed by its square"
    assert ongoing == pytest.approx(100 * (0.01 + 0.04 / math.log(100))), "Little's law"


def test_beyond_capacity_the_line_grows_to_the_longest_wait_and_the_rest_is_refused():
    late, line, _ = answer(PLACE, running=1, arrived=2_000, line=0, interval_s=10)
    assert line == pytest.approx(100 * LONGEST_WAIT_S)
    in_time = 100 * 0.1 / 100  # the line reaches 100 ms after a tenth of a second
    refused = 1_000 - line
    assert late == pytest.approx(refused + (2_000 - refused) * (1 - in_time / 10))


@given(st.integers(1, 10), st.floats(0, 5_000), st.floats(0, 25))
def test_nothing_is_late_twice_and_the_line_is_bounded(running, arrived, line):
    late, left, ongoing = answer(PLACE, running, arrived, min(line, running * 25.0), 10.0)
    assert 0 <= late <= arrived + 1e-9
    assert 0 <= left <= running * 100 * LONGEST_WAIT_S + 1e-9
    assert ongoing >= 0


def test_those_that_have_not_started_go_first():
    assert changed(3, [10.0, 20.0], 4, 99.0) == (3, [10.0])
    assert changed(3, [10.0], 2, 99.0) == (2, [])
    assert changed(3, [10.0], 6, 99.0) == (3, [10.0, 99.0, 99.0])


def test_a_replica_serves_a_start_after_it_was_asked_for_and_costs_from_then_on():
    arrived = np.full(12, 900.0)
    played = play(ByPlan(np.array([1, 2])), PLACE, 0.0, 10.0, arrived, replicas=1)
    assert played.replicas.tolist() == [1, 1] + [2] * 10
    alone = play(Fixed(1), PLACE, 0.0, 10.0, arrived, replicas=1)
    quick = play(Fixed(2), PLACE, 0.0, 10.0, arrived, replicas=2)
    each = answer(PLACE, 1, 900.0, 0.0, 10.0)[0] - 0.01 * 900
    assert (alone.violations, quick.violations) == (pytest.approx(12 * each), 0), "one late in a hundred is allowed"
    assert played.violations == pytest.approx(8 * each), "asked for at 20 s, there at 80 s"
    assert (played.actions, played.hours) == (1, pytest.approx((2 + 20) * 10 / 3_600))


def test_needed_and_the_highest_ahead():
    assert needed(PLACE, np.array([0.0, 800.0, 801.0, 1e6]), 10.0).tolist() == [1, 1, 2, 10]
    values = np.random.default_rng(1).integers(0, 9, 30)
    assert highest_ahead(values, 4).tolist() == [max(values[n : n + 5]) for n in range(30)]


def seen(ongoing: float, at_s: float, running: int = 1, starting: int = 0) -> Seen:
    return Seen(Signals(at_s, 10.0, 100.0, 0.0, 0.5, running, starting), ongoing)


def test_serves_own_policy_decides_by_requests_under_way_with_its_delays():
    policy = ServePolicy(most=10, target=2.0, up_s=30.0, down_s=0.0, look_back_s=30.0)
    targets = [policy.decide(seen(12.0, at_s)) for at_s in (0.0, 10.0, 20.0, 30.0)]
    assert targets == [1, 1, 1, 6], "12 under way, 2 each, after half a minute"
    assert policy.decide(seen(3.1, 100.0, running=6)) == 2


def test_kpa_panics_when_a_short_window_asks_for_twice_what_runs_and_does_not_shrink_then():
    kpa = Kpa(target=1.0, stable_s=60.0, hold_s=0.0)
    for at_s in range(0, 60, 10):
        assert kpa.decide(seen(1.0, float(at_s))) == 1
    assert kpa.decide(seen(5.0, 60.0)) == 5, "the last tenth of the window"
    assert kpa.decide(seen(0.5, 70.0, running=5)) == 5
    assert kpa.decide(seen(0.5, 300.0, running=5)) == 1


def daily(days: int = 40) -> CountTrace:
    """Half-hours of quiet nights and busy noons."""
    steps = np.arange(days * 48)
    return CountTrace(4 * 86_400.0, 1_800.0, 100 + 80 * np.sin((steps % 48) / 48 * 2 * np.pi), ())


CASE = Case(
    "made",
    daily,
    peak_per_s=500.0,
    interval_s=300.0,
    start_s=900.0,
    span_s=86_400.0,
    quick_s=86_400.0,
    forecast=ForecastSettings(step_s=300, slot_s=1_800, history_days=10, max_lead_s=3_600),
    season_s=86_400.0,
)


@pytest.fixture(scope="module")
def ground() -> Ground:
    part = stretch(CASE, daily(), seed=1)
    part = replace(part, before=part.before[-48:])
    told = foretell(CASE, part, (0.6, 0.9))
    return Ground(CASE, part, replace(CASE.deployment()), told.again)


def test_a_stretch_lies_in_its_part_of_the_trace_and_is_the_same_for_the_same_seed():
    trace = daily()
    part, tuned = stretch(CASE, trace, 3), stretch(CASE, trace, 3, tuning=True)
    border_s = trace.times_s[int(len(trace.counts) * 0.7)]
    assert part.start_s >= border_s
    assert tuned.start_s + len(tuned.arrived) * CASE.interval_s <= border_s
    assert (stretch(CASE, trace, 3).arrived == part.arrived).all()
    assert not (stretch(CASE, trace, 4).arrived[:50] == part.arrived[:50]).all()
    assert part.past_s.max() < part.start_s


def test_the_swing_leaves_the_mean_and_has_the_stated_deviation():
    factors = swing(np.random.default_rng(1), 200_000, 30.0)
    assert factors.mean() == pytest.approx(1.0, abs=0.003)
    assert np.log(factors).std() == pytest.approx(0.05, rel=0.05)


def test_every_arm_plays_the_same_demand_and_the_oracle_misses_least(ground):
    settings = {name: next(iter(settings_of(name))) for name in (SERVE, KPA, SEASONAL)}
    settings |= {STATIC: {}, ORACLE: {}, RECPOOL: {"quantile": 0.9, "hold_s": 600.0, "headroom": 1.0}}
    plays = {
        name: play(made(name, ground, each), ground.deployment, ground.seen.start_s, 300.0, ground.seen.arrived, 7)
        for name, each in settings.items()
    }
    assert len({each.arrived for each in plays.values()}) == 1
    assert plays[ORACLE].hours < plays[STATIC].hours
    assert plays[ORACLE].violations <= 1e-6 * plays[ORACLE].arrived
    assert plays[RECPOOL].hours < plays[STATIC].hours


def test_rows_ratios_and_floors():
    demand = np.full(10, 900.0)
    fewer, more = (play(Fixed(count), PLACE, 0.0, 10.0, demand, count) for count in (2, 1))
    rows = {RECPOOL: [row_of(fewer, fewer)] * 3, SERVE: [row_of(more, fewer)] * 3, KPA: [row_of(more, fewer)] * 3}
    assert rows[SERVE][0].under == pytest.approx(0.5) and rows[SERVE][0].over == 0
    assert summary(rows)[SERVE]["hours"] == [pytest.approx(100 / 3_600)] * 3
    assert paired_ratio(rows, SERVE, "hours") == [pytest.approx(2.0)] * 3
    assert [(each.met, each.name.split(": ")[1].split(" ")[0]) for each in floors({"t": rows})] == [
        (True, "violations"),
        (True, "violations"),
        (False, "slice-hours"),
    ]


def test_cases_can_be_foretold_as_far_as_an_autoscaler_asks():
    for case in CASES:
        assert case.forecast.step_s == case.interval_s
        assert 2 * case.start_s + 2 * case.interval_s <= case.forecast.max_lead_s


def outcome(violations: float, hours: int, actions: int = 0) -> Played:
    return Played(1e6, violations, np.full(hours, 1), actions, 3_600.0)


@pytest.mark.parametrize(
    ("tried", "chosen"),
    [
        ([outcome(5, 10), outcome(1, 12), outcome(0, 13)], 1),  # the fewest violations within the budget
        ([outcome(0, 12), outcome(0, 11)], 1),  # of equal ones the cheapest
        ([outcome(0, 20), outcome(9, 15)], 1),  # none within it: the cheapest
        ([outcome(0, 10, actions=1_000), outcome(3, 12)], 1),  # flapping only where all do
        ([outcome(0, 10, actions=1_000), outcome(3, 12, actions=1_000)], 0),
    ],
)
def test_every_arm_is_tuned_by_the_same_rule(tried, chosen):
    assert best_of([({}, each) for each in tried], budget=12.0)[1] is tried[chosen]
