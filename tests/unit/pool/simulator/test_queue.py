"""Batches of those who wait: against closed forms, and against the plainest simulation there is."""

from __future__ import annotations

import numpy as np
import pytest

from pool.policy.latency import LatencyProfile
from pool.simulator.batch_draws import BatchDraws
from pool.simulator.latencies import above, counted, quantile_ms, stretched
from pool.simulator.load_curves import load_curve
from pool.simulator.queue_loop import batch_queue

UNIT_S = 1 / 1024
"""Times are whole numbers of it, which floating point holds exactly: who was first is never a matter of rounding."""


def plainly(arrivals, took, replicas, most):
    """Latencies of requests, one unit of time after the other; `took` by rows."""
    waiting, inside, free = [[] for _ in range(replicas)], [[] for _ in range(replicas)], [0] * replicas
    latency, turn, at, now = [0] * len(arrivals), 0, 0, 0
    while at < len(arrivals) or any(waiting) or any(inside):
        for each in range(replicas):
            if inside[each] and free[each] <= now:
                for number in inside[each]:
                    latency[number] = now - arrivals[number]
                inside[each] = []
            if waiting[each] and not inside[each]:
                inside[each], waiting[each] = waiting[each][:most], waiting[each][most:]
                free[each] = now + took[len(inside[each])]
        while at < len(arrivals) and arrivals[at] == now:
            order = [(turn + step) % replicas for step in range(replicas)]
            chosen = min(order, key=lambda each: len(waiting[each]) + len(inside[each]))
            turn = chosen + 1
            waiting[chosen].append(at)
            if not inside[chosen]:
                inside[chosen], waiting[chosen] = [at], []
                free[chosen] = now + took[1]
            at += 1
        now += 1
    return latency


@pytest.mark.parametrize("replicas", [1, 3])
@pytest.mark.parametrize("most", [1, 4])
def test_the_loop_is_a_plain_simulation(replicas, most):
    arrivals = np.unique(np.random.default_rng(replicas).integers(1, 2_000, 300))
    took = [0, 10, 14, 17, 21][: most + 1]
    nothing = np.zeros(len(arrivals))
    found, _, _ = batch_queue(
        arrivals * UNIT_S, np.array(took) * UNIT_S, np.zeros(most + 1), replicas, 0.0, nothing, nothing
    )
    assert (found / UNIT_S).tolist() == plainly(arrivals.tolist(), took, replicas, most)


def test_one_at_a_time_waits_as_long_as_the_formula_says():
    """M/D/1: mean wait is load / (2 (1 - load)) services (Pollaczek and Khinchine)."""
    rng, load, count = np.random.default_rng(1), 0.7, 200_000
    arrivals_s = np.cumsum(rng.exponential(0.01 / load, count))
    nothing = np.zeros(count)
    found, busy_s, batches = batch_queue(arrivals_s, np.array([0.0, 0.01]), np.zeros(2), 1, 0.0, nothing, nothing)
    assert found.mean() - 0.01 == pytest.approx(0.01 * load / (2 * (1 - load)), rel=0.05)
    assert batches == count
    assert busy_s == pytest.approx(count * 0.01)


def test_an_idle_replica_waits_for_the_step_of_other_work():
    arrivals_s, evenly = np.arange(1.0, 101.0), (np.arange(100) + 0.5) / 100
    found, _, _ = batch_queue(arrivals_s, np.array([0.0, 0.01]), np.zeros(2), 1, 0.005, np.zeros(100), evenly)
    assert found.mean() == pytest.approx(0.0125)
    assert found.max() <= 0.015


def test_drawn_batches_have_the_measured_quantiles():
    profile = LatencyProfile(batch_rows=(1, 8), p50_ms=(2.0, 8.0), p99_ms=(3.0, 20.0))
    draws, normals = BatchDraws(profile, 8), np.random.default_rng(0).standard_normal(20_000)
    drawn = [draws.draw_s(8, normal) * 1e3 for normal in normals]
    assert np.quantile(drawn, [0.5, 0.99]) == pytest.approx([8.0, 20.0], rel=0.03)
    assert draws.mean_s[8] * 1e3 == pytest.approx(np.mean(drawn), rel=0.02)
    assert draws.per_s == pytest.approx(8 / (np.mean(drawn) / 1e3), rel=0.02)


def test_latency_rises_with_the_rate_and_is_what_an_autoscaler_plans_with():
    profile = LatencyProfile(batch_rows=(1, 8, 32), p50_ms=(2.0, 8.0, 30.0), p99_ms=(3.0, 12.0, 45.0))
    curve = load_curve(profile, 32)
    planned = curve.service_curve(start_s=20.0, overhead_ms=1.0)
    assert planned.start_s == 20.0
    assert 3.95 < planned.p99_ms(planned.points[0][0]) < 4.6  # a batch alone takes 3 ms; hardly anybody waits
    assert planned.sustained_per_s(30) < planned.sustained_per_s(60) < curve.most_per_s
    _, busy = curve.at(curve.most_per_s * 0.98)
    assert 0.9 < busy <= 1.0


def test_counted_latencies_keep_their_quantiles():
    values_ms = np.random.default_rng(2).lognormal(2, 1, 20_000)
    counts = counted(values_ms)
    for q in (0.5, 0.9, 0.99):
        assert quantile_ms(counts, q) == pytest.approx(np.quantile(values_ms, q), rel=0.015)
    assert above(counts, 20.0) == pytest.approx((values_ms > 20).sum(), rel=0.02)
    assert quantile_ms(stretched(counts, 2.0, 5.0), 0.9) == pytest.approx(np.quantile(values_ms * 2 + 5, 0.9), rel=0.02)
