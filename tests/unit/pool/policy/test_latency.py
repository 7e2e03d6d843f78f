from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.pool_settings import DevicePeak, PoolSettings, RooflineSettings
from pool.policy.cost_model import needed_milli, predict, predict_kinds
from pool.policy.latency import (
    BatchTime,
    GraphCosts,
    Latency,
    LatencyProfile,
    interpolate,
    measured_again,
    roofline,
    size_class,
)
from pool.workload import WorkloadAttributes, WorkloadSpec

PEAK = DevicePeak(fp32_gflops=100, fp16_gflops=200, int8_gops=400, gbytes_per_s=10, overhead_ms=0.5)
ROOFLINE = RooflineSettings(cpu=PEAK, gpu=PEAK, npu=PEAK, efficiency=0.5, tail=2)
PLAIN = WorkloadAttributes()


def spec(**about) -> WorkloadSpec:
    return WorkloadSpec(**{"name": "w", "kind": "inference", "model": "m", **about})


def profile(sizes, p50_ms, p99_ms=None) -> LatencyProfile:
    return LatencyProfile(batch_rows=sizes, p50_ms=p50_ms, p99_ms=p99_ms or p50_ms)


def test_what_was_measured_is_what_is_predicted():
    sizes, values = (1, 3, 64), (2.0, 2.5, 40.0)
    assert [interpolate(rows, sizes, values) for rows in sizes] == list(values)


@given(
    power=st.floats(0, 2),
    factor=st.floats(0.01, 100),
    rows=st.integers(1, 4096),
    step=st.sampled_from([2, 4, 16, 4096]),
)
def test_between_measurements_a_power_law_is_met_exactly(power, factor, rows, step):
    sizes = [step**n for n in range(int(math.log(4096, step)) + 1)]
    sizes += [4096] if sizes[-1] < 4096 else []
    assert interpolate(rows, sizes, [factor * size**power for size in sizes]) == pytest.approx(factor * rows**power)


@given(
    sizes=st.lists(st.integers(1, 10_000), min_size=1, max_size=8, unique=True).map(sorted),
    rows=st.integers(1, 20_000),
    data=st.data(),
)
def test_a_prediction_lies_between_its_neighbours_and_never_falls_above_the_last(sizes, rows, data):
    values = data.draw(st.lists(st.floats(0.1, 1_000), min_size=len(sizes), max_size=len(sizes)))
    found = interpolate(rows, sizes, values)
    below = [value for size, value in zip(sizes, values, strict=True) if size <= rows]
    above = [value for size, value in zip(sizes, values, strict=True) if size >= rows]
    if below and above:
        low, high = sorted((below[-1], above[0]))
        assert low * 0.999999 <= found <= high * 1.000001
    elif above:
        assert found == values[0]
    else:
        assert found >= values[-1]


def test_above_the_largest_batch_it_goes_on_straight():
    assert interpolate(300, (100, 200), (10.0, 15.0)) == pytest.approx(20.0)
    assert interpolate(300, (100, 200), (15.0, 10.0)) == 10.0
    assert interpolate(30, (10,), (4.0,)) == pytest.approx(12.0)


def test_p99_never_falls_below_p50():
    measured = profile((1, 2), (1.0, 9.0), (10.0, 10.0))
    assert measured.latency(50).p99_ms >= measured.latency(50).p50_ms


def test_arithmetic_bounds_a_dense_model():
    costs = GraphCosts(flops=10**9, parameters=0, weight_bytes=10, activation_bytes=10, has_attention=False)
    # 10^9 operations at half of 100 * 10^9 a second are 20 ms
    assert roofline(costs, 1, "cpu", ROOFLINE, PLAIN) == Latency(20.5, 41.0)


def test_memory_bounds_a_wide_one_and_tables_are_not_read_whole():
    costs = GraphCosts(10, 0, weight_bytes=60 * 10**6, activation_bytes=10**7, has_attention=False, table_bytes=10**7)
    # 60 MB at half of 10 GB a second are 12 ms
    assert roofline(costs, 1, "cpu", ROOFLINE, PLAIN).p50_ms == pytest.approx(12.5)


@pytest.mark.parametrize(
    ("attributes", "times"),
    [
        ({"precision": "fp16"}, 1 / 2),
        ({"precision": "int8"}, 1 / 4),
        ({"pruning": 0.25}, 3 / 4),
        ({"shards": 4}, 1 / 4),
    ],
)
def test_declared_attributes_shorten_the_arithmetic(attributes, times):
    costs = GraphCosts(10**9, 0, 0, 0, False)
    found = roofline(costs, 1, "gpu", ROOFLINE, WorkloadAttributes(**attributes))
    assert found.p50_ms == pytest.approx(20 * times + 0.5)


def test_another_batch_than_that_counted_is_scaled():
    costs = GraphCosts(10**9, 0, 0, 0, False, batch_rows=4)
    assert roofline(costs, 8, "npu", ROOFLINE, PLAIN).p50_ms == pytest.approx(40.5)


def test_the_share_keeps_the_slo_with_room_to_spare():
    settings = PoolSettings.model_validate({"placement": {"slo_share": 0.5, "busy_share": 0.5}})
    asked = spec(slo_ms=100, min_milli=10)
    assert needed_milli(asked, Latency(5, 10), settings) == 200  # 10 ms may take 50 ms: a fifth of the device
    assert needed_milli(asked, Latency(5, 60), settings) == 1200  # more than a device
    assert needed_milli(asked, Latency(5, 10), settings, batches_per_s=60) == 600  # 30% of the time, at half busy
    assert needed_milli(spec(min_milli=300, slo_ms=100), Latency(5, 10), settings) == 300
    assert needed_milli(spec(min_milli=10), Latency(5, 10), settings) == 10


@given(latency_ms=st.floats(0.01, 1000), slo_ms=st.floats(0.1, 1000))
def test_a_predicted_share_is_the_smallest_that_keeps_the_slo(latency_ms, slo_ms):
    settings = PoolSettings.model_validate({"placement": {"slo_share": 1}})
    share = needed_milli(spec(slo_ms=slo_ms, min_milli=1), Latency(latency_ms, latency_ms), settings)
    assert latency_ms * 1000 / share <= slo_ms * 1.000001
    assert share == 1 or latency_ms * 1000 / (share - 1) > slo_ms * 0.999999


def test_a_profile_goes_before_the_graph_and_the_graph_before_nothing():
    costs = GraphCosts(10**9, 0, 0, 0, False)
    settings = PoolSettings(roofline=ROOFLINE)
    asked = spec(tier=("gpu", "npu", "cpu"), attributes={"batch_rows": 2, "precision": "int8"})
    measured = profile((1, 2), (1.0, 3.0), (2.0, 4.0))
    found = predict_kinds(asked, {"gpu": measured}, costs, settings)
    assert list(found) == ["gpu", "npu", "cpu"]
    assert (found["gpu"].source, found["gpu"].latency_ms) == ("profile", 4.0)
    assert (found["npu"].source, found["npu"].latency_ms) == ("roofline", pytest.approx(2 * (2 * 5 + 0.5)))
    assert list(predict_kinds(asked, {"gpu": measured}, None, settings)) == ["gpu"]
    assert predict(asked, "cpu", None, None, settings) is None


def test_sizes_of_a_class_are_within_a_factor_of_two():
    assert [size_class(rows) for rows in (1, 2, 3, 4, 5, 8, 9, 16, 17)] == [0, 1, 2, 2, 3, 3, 4, 4, 5]


def test_a_new_measurement_takes_the_place_of_one_of_its_class_and_of_no_other():
    old = profile((1, 3, 8), (1.0, 2.0, 4.0), (1.0, 2.0, 4.0))
    again = measured_again(old, [BatchTime(4, 9.0, 10.0)], emulated=False)
    assert again == profile((1, 4, 8), (1.0, 9.0, 4.0), (1.0, 10.0, 4.0))
    assert measured_again(None, [BatchTime(4, 9.0, 10.0)], emulated=False) == profile((4,), (9.0,), (10.0,))


def test_what_stood_in_for_a_device_is_not_mixed_with_the_device():
    old = profile((1,), (1.0,), (1.0,))
    again = measured_again(old, [BatchTime(8, 9.0, 10.0)], emulated=True)
    assert again is not None and (again.batch_rows, again.emulated) == ((8,), True)


@pytest.mark.parametrize("wrong", [(0, 1.0, 2.0), (1, 0.0, 2.0), (1, 3.0, 2.0), (1, math.nan, 2.0), (1, 1.0, math.inf)])
def test_a_measurement_that_cannot_be_changes_nothing(wrong):
    old = profile((2,), (1.0,), (1.0,))
    assert measured_again(old, [BatchTime(*wrong)], emulated=False) == old
    assert measured_again(None, [BatchTime(*wrong)], emulated=False) is None


@given(st.lists(st.tuples(st.integers(1, 1 << 40), st.floats(1e-3, 1e6)), min_size=1, max_size=200))
def test_a_profile_stays_small_however_often_it_is_measured(drawn):
    kept = None
    for rows, took_ms in drawn:
        kept = measured_again(kept, [BatchTime(rows, took_ms, took_ms)], emulated=False)
        assert kept is not None and rows in kept.batch_rows
    assert kept is not None and len(kept.batch_rows) <= 41
