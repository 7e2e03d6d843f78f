from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.policy.latency import BatchTime, measured_again
from serving.batch_times import KEPT, LEAST_RUNS, BatchTimes


def test_percentiles_are_of_batches_of_like_size():
    times = BatchTimes()
    took_ms = [float(n) for n in range(1, 101)]
    for each in took_ms:
        times.observe(1, each)
        times.observe(6, 10 * each)
    p50_ms, p99_ms = np.percentile(took_ms, [50, 99])
    assert times.summary() == (BatchTime(1, p50_ms, p99_ms, 100), BatchTime(6, 10 * p50_ms, 10 * p99_ms, 100))


def test_a_size_seen_too_seldom_is_not_told():
    times = BatchTimes()
    for _ in range(LEAST_RUNS - 1):
        times.observe(2, 1.0)
    assert times.summary() == ()
    times.observe(2, 1.0)
    assert [each.runs for each in times.summary()] == [LEAST_RUNS]


def test_old_batches_are_forgotten():
    times = BatchTimes()
    for took_ms in [100.0] * KEPT + [1.0] * KEPT:
        times.observe(1, took_ms)
    [only] = times.summary()
    assert (only.p99_ms, only.runs) == (1.0, KEPT)


@pytest.mark.parametrize(("rows", "mean"), [([3, 4], 4), ([5, 6, 7, 8], 6), ([16], 16)])
def test_sizes_within_a_factor_of_two_are_one(rows, mean):
    times = BatchTimes()
    for _ in range(LEAST_RUNS):
        for each in rows:
            times.observe(each, 1.0)
    assert [each.rows for each in times.summary()] == [mean]


@given(st.lists(st.tuples(st.integers(1, 5_000), st.floats(0.01, 1e4)), min_size=1, max_size=40))
def test_whatever_is_measured_makes_a_profile(drawn):
    times = BatchTimes()
    for rows, took_ms in drawn:
        for _ in range(LEAST_RUNS):
            times.observe(rows, took_ms)
    profile = measured_again(None, times.summary(), emulated=False)
    assert profile is not None and len(profile.batch_rows) == len(times.summary())
    assert min(rows for rows, _ in drawn) <= profile.batch_rows[0]
    assert profile.batch_rows[-1] <= max(rows for rows, _ in drawn)
