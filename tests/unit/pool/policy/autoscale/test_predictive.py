"""Replicas are there when demand comes, stay while it may return, and leave when it does not."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.autoscale_settings import AutoscaleSettings, CapacityPoint, ScaledDeployment
from configs.forecast_settings import ForecastSettings
from pool.policy.autoscale.predictive import PredictiveAutoscaler
from pool.policy.autoscale.signals import Signals, Target

EACH, START_S, STEP_S, MOST = 50.0, 40.0, 10.0, 20
SETTINGS = AutoscaleSettings(interval_s=STEP_S, fast_s=STEP_S, down_after_s=120)
CURVE = (CapacityPoint(rate_per_s=10, p99_ms=20), CapacityPoint(rate_per_s=EACH, p99_ms=100))
DEPLOYMENT = ScaledDeployment(min_replicas=1, max_replicas=MOST, start_s=START_S, curve=CURVE)
FORECAST = ForecastSettings(step_s=STEP_S, slot_s=300, history_days=2, max_lead_s=600)
MONDAY_S = 4 * 86_400.0


@dataclass
class World:
    """Replicas that serve a start after they were asked for; demand is a rate by time."""

    scaler: PredictiveAutoscaler
    rate: Callable[[float], float]
    at_s: float = MONDAY_S
    running: int = 1
    lost: int = 0
    late: float = 0.0

    def __post_init__(self) -> None:
        self.starting: list[float] = []
        self.history: list[tuple[float, Target, int]] = []
        self.queued = 0.0

    def step(self, **changes: float) -> Target:
        self.at_s += STEP_S
        ready = [each for each in self.starting if each <= self.at_s]
        self.running += len(ready)
        self.starting = [each for each in self.starting if each > self.at_s]
        running, arrived = self.running - self.lost, self.rate(self.at_s) * STEP_S
        self.queued = max(0.0, self.queued + arrived - running * EACH * STEP_S)
        seen = Signals(self.at_s, STEP_S, arrived, self.queued, 0.5, running, len(self.starting), self.late * arrived)
        target = self.scaler.decide(replace(seen, **changes))
        missing = target.replicas - self.running - len(self.starting)
        self.starting += [self.at_s + START_S] * max(0, missing)
        self.running += min(0, missing)
        self.history.append((self.at_s, target, running))
        return target

    def run(self, seconds: float) -> Target:
        for _ in range(round(seconds / STEP_S) - 1):
            self.step()
        return self.step()


def world(rate: Callable[[float], float], **changes) -> World:
    settings = changes.pop("settings", SETTINGS)
    return World(PredictiveAutoscaler(settings, DEPLOYMENT, FORECAST), rate, **changes)


def test_steady_demand_has_what_it_needs_and_does_not_flap():
    calm = world(lambda at_s: 170.0)
    calm.run(900)
    targets = {target.replicas for at_s, target, _ in calm.history if at_s > MONDAY_S + 600}
    assert targets == {math.ceil(170 / EACH)}


def test_noise_of_independent_callers_does_not_flap():
    chance = np.random.default_rng(3)
    noisy = world(lambda at_s: chance.poisson(170 * STEP_S) / STEP_S)
    noisy.run(1_800)
    targets = [target.replicas for at_s, target, _ in noisy.history if at_s > MONDAY_S + 900]
    assert set(targets) <= {4, 5}
    assert np.count_nonzero(np.diff(targets)) <= 4


def test_once_a_ramp_has_shown_replicas_are_ready_before_they_are_needed():
    ramp = world(lambda at_s: 100 + max(0.0, at_s - MONDAY_S - 600) * 0.5)
    ramp.run(600 + 900)
    shown_s = MONDAY_S + 600 + 300
    short = [at_s for at_s, _, running in ramp.history if at_s > shown_s and running * EACH < ramp.rate(at_s)]
    assert not short


def test_a_burst_is_answered_at_once_and_kept_until_it_is_surely_over():
    begin_s = MONDAY_S + 600
    burst = world(lambda at_s: 600.0 if begin_s < at_s <= begin_s + 60 else 100.0)
    burst.run(600)
    assert burst.step().replicas >= math.ceil(600 * 0.9 / EACH), "in the first interval that shows it"
    assert any("panic" in reason for reason in burst.step().reasons) or burst.history[-1][1].replicas >= 12
    burst.run(40)
    assert burst.run(60).replicas >= 11, "right after, none has left"
    assert burst.run(900).replicas <= 3


def test_a_daily_peak_is_provided_for_before_it_comes():
    def noon(at_s: float) -> float:
        return 700.0 if at_s % 86_400 == 43_200 else 100.0

    half_hour_s = 1_800.0
    coarse = ForecastSettings(step_s=half_hour_s, slot_s=half_hour_s, history_days=10, max_lead_s=7_200)
    slow = DEPLOYMENT.model_copy(update={"start_s": 600.0})
    scaler = PredictiveAutoscaler(SETTINGS.model_copy(update={"interval_s": half_hour_s}), slow, coarse)
    before_noon = []
    for begin_s in MONDAY_S + half_hour_s * np.arange(6 * 48):
        target = scaler.decide(Signals(begin_s + half_hour_s, half_hour_s, noon(begin_s) * half_hour_s, 0, 0.5, 2, 0))
        if begin_s % 86_400 == 43_200 - half_hour_s:
            before_noon.append(target.replicas)
    assert before_noon[0] <= 3, "nobody could know"
    assert before_noon[-1] >= 700 / EACH


def test_silence_lets_all_go_but_the_least():
    calm = world(lambda at_s: 400.0 if at_s < MONDAY_S + 600 else 0.0)
    assert calm.run(600).replicas >= 8
    assert calm.run(900).replicas == 1


@pytest.mark.parametrize("back_s", [30.0, 3_600.0, 3 * 86_400.0])
def test_a_clock_that_goes_back_keeps_what_the_present_needs(back_s):
    calm = world(lambda at_s: 170.0)
    calm.run(600)
    calm.at_s -= back_s
    after = [calm.step() for _ in range(30)]
    assert all(4 <= target.replicas <= 6 for target in after)
    calm.rate = lambda at_s: 20.0
    assert calm.run(300).replicas <= 3, "windows of the old clock do not hold it"


def test_one_replica_missing_is_said_and_asked_for_no_second_time():
    calm = world(lambda at_s: 170.0)
    calm.run(600)
    calm.lost = 1
    lost = calm.step()
    assert lost.replicas == 4
    assert "1 of 4 not there yet" in lost.reasons


def test_replicas_slower_than_measured_are_made_up_for_and_let_go_again():
    slow = world(lambda at_s: 170.0)
    slow.run(600)
    slow.late = 0.05
    assert slow.run(60).replicas == 5
    slow.late = 0.0
    assert slow.run(600).replicas == 4


def test_one_that_starts_again_lets_nobody_go_before_it_has_seen_for_itself():
    calm = world(lambda at_s: 20.0, running=6)
    assert calm.run(SETTINGS.down_after_s).replicas == 6
    assert calm.run(60).replicas == 1


def test_a_queue_that_will_not_drain_asks_for_more_than_the_rate_does():
    calm = world(lambda at_s: 190.0)
    calm.run(600)
    assert calm.step(queued=500.0).replicas == 4, "four work it off before another were ready"
    # 1,900 arrivals in 10 s are surely 181.3/s; three run and a fourth is on its way, which is less than that.
    assert calm.step(queued=2_000.0, running=3).replicas == math.ceil((181.3 + 2_000 / 10) / EACH)


def test_a_queue_is_not_thought_to_grow_longer_than_requests_wait():
    calm = world(lambda at_s: 300.0, settings=SETTINGS.model_copy(update={"longest_wait_s": 4.0}))
    calm.run(600)
    # Surely 289/s; two run and four are on their way: 200/s for 40 s. Who would wait for more than 4 s is refused.
    assert calm.step(queued=1.0, running=2).replicas == math.ceil((289 + 200 * 4 / 10) / EACH)


def test_requests_that_crowd_are_provided_for_with_more_care():
    chance = np.random.default_rng(5)
    calm = world(lambda at_s: chance.poisson(194 * STEP_S) / STEP_S)
    for _ in range(60):
        calm.step(entropy_bits=8.0 + chance.normal(0, 0.03))
    target = calm.step(entropy_bits=6.5)
    assert any(reason.startswith("requests crowd: their entropy fell by 1.5 bits") for reason in target.reasons)
    assert any("q99" in reason for reason in target.reasons)


def test_reasons_say_rate_lead_quantile_and_what_one_replica_does():
    calm = world(lambda at_s: 170.0)
    target = calm.run(600)
    assert any(
        reason.startswith("forecast 170/s at +") and reason.endswith("needs 4 of 50/s each")
        for reason in target.reasons
    )


rates = st.lists(st.floats(0, 5_000), min_size=1, max_size=40)


@given(rates, st.lists(st.floats(-500, 500), min_size=40, max_size=40), st.integers(0, 30))
def test_whatever_comes_the_target_is_within_bounds_and_the_same_again(rates, jumps, running):
    def targets() -> list[Target]:
        scaler, at_s = PredictiveAutoscaler(SETTINGS, DEPLOYMENT, FORECAST), MONDAY_S
        found = []
        for rate, jump in zip(rates, jumps, strict=False):
            at_s += STEP_S + jump
            found.append(scaler.decide(Signals(at_s, STEP_S, rate * STEP_S, rate, 1.0, running, 0, rate)))
        return found

    first = targets()
    assert first == targets()
    assert all(1 <= target.replicas <= MOST and target.reasons for target in first)
