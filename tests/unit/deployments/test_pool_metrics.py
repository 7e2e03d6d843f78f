"""The report as Prometheus reads it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from deployments.pool_metrics import LAST_DECISIONS, METRICS_TYPE, metrics_text
from pool.views import CostReport, DecisionReport, PoolReport
from tests.unit.deployments.pools import device, full_report, slice_of, workload

EMPTY = PoolReport(epoch=1, age_s=0.0, devices=(), workloads=(), decisions=())


def samples(report: PoolReport) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Labels and values by the name of the metric."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    for family in text_string_to_metric_families(metrics_text(report).decode()):
        for sample in family.samples:
            found.setdefault(sample.name, []).append((sample.labels, sample.value))
    return found


def of_kind(kind: str, found: list[tuple[dict[str, str], float]]) -> float:
    return next(value for labels, value in found if labels["kind"] == kind)


def test_every_name_is_the_pools():
    assert all(name.startswith("recpool_pool_") for name in samples(full_report()))
    assert METRICS_TYPE.startswith("text/plain; version=0.0.4")


def test_a_device_shows_what_is_metered_beside_what_is_leased():
    found = samples(full_report())
    metered, leased = found["recpool_pool_slice_metered_milli"], found["recpool_pool_slice_leased_milli"]
    assert [of_kind(kind, metered) for kind in ("inference", "warmup", "finetune")] == [300, 400, 300]
    assert [of_kind(kind, leased) for kind in ("inference", "warmup", "finetune")] == [200, 400, 300]
    free = {labels["device"]: value for labels, value in found["recpool_pool_device_free_milli"]}
    assert free == {"gpu-0": 100, "cpu-0": 1000}


def test_whatever_stands_on_an_emulated_device_says_so():
    found = samples(full_report())
    for name, each in found.items():
        if name.startswith(("recpool_pool_slice_", "recpool_pool_device_")):
            assert {labels["emulated"] for labels, _ in each if labels["device"] == "gpu-0"} == {"true"}, name
            assert {labels["emulated"] for labels, _ in each if labels["device"] == "cpu-0"} <= {"false"}, name


def test_what_has_no_value_has_no_sample():
    found = samples(full_report())
    assert found["recpool_pool_slice_slo_headroom_ratio"][0][1] == 0.25
    for name, kinds in {
        "slice_slo_headroom_ratio": {"inference"},
        "slice_progress_ratio": {"warmup", "finetune"},
        "slice_steps_per_second": {"finetune"},
    }.items():
        assert {labels["kind"] for labels, _ in found[f"recpool_pool_{name}"]} == kinds


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_is_no_finite_number_has_none_either(value):
    report = replace(EMPTY, age_s=value, devices=(device(slices=(slice_of("inference", 0, 100, headroom=value),)),))
    found = samples(report)
    assert "recpool_pool_age_seconds" not in found
    assert "recpool_pool_slice_slo_headroom_ratio" not in found


def test_preemptions_are_a_counter():
    families = {family.name: family for family in text_string_to_metric_families(metrics_text(full_report()).decode())}
    counter = families["recpool_pool_slice_preemptions"]
    assert counter.type == "counter"
    assert {sample.name for sample in counter.samples} == {"recpool_pool_slice_preemptions_total"}
    assert of_kind("finetune", [(s.labels, s.value) for s in counter.samples]) == 17


def test_where_a_workload_stands_is_a_label():
    found = {labels["workload"]: labels for labels, _ in samples(full_report())["recpool_pool_workload_info"]}
    assert (found["nightly"]["phase"], found["nightly"]["device"]) == ("preempted", "")
    assert (found["inference-1"]["phase"], found["inference-1"]["device"]) == ("running", "gpu-0")


def test_an_empty_pool_has_an_epoch_and_no_devices():
    found = samples(EMPTY)
    assert found["recpool_pool_epoch"] == [({}, 1.0)]
    assert not [name for name in found if name.startswith("recpool_pool_device_")]


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_any_name_comes_back_as_it_was(name):
    # Line breaks but \n are refused in ids of devices, so the parser need not know them.
    name = "".join(each for each in name if each.isprintable() or each == "\n") or '\\"'
    report = replace(EMPTY, devices=(device(name, (slice_of("finetune", 1, 2, workload=name),)),))
    labels, _ = samples(report)["recpool_pool_slice_leased_milli"][0]
    assert (labels["device"], labels["workload"]) == (name, name)


def test_no_sample_comes_twice_for_replicas_of_one_workload():
    twins = (slice_of("inference", 1, 2, lease="1-1"), slice_of("inference", 1, 2, lease="1-2"))
    for name, each in samples(replace(EMPTY, devices=(device(slices=twins),))).items():
        keys = [tuple(sorted(labels.items())) for labels, _ in each]
        assert len(set(keys)) == len(keys), name


def test_what_was_predicted_stands_beside_what_was_measured():
    costs = (
        CostReport("gpu", 8, 5.5, 7.25, True, 300, "profile"),
        CostReport("npu", 8, 2.5, None, False, 100, "roofline"),
    )
    found = samples(replace(EMPTY, workloads=(workload("warm", costs=costs),)))
    predicted = {each["device_kind"]: value for each, value in found["recpool_pool_workload_predicted_ms"]}
    assert predicted == {"gpu": 5.5, "npu": 2.5}
    [(labels, measured_ms)] = found["recpool_pool_workload_measured_ms"]
    assert (labels["emulated"], labels["source"], labels["batch_rows"], measured_ms) == ("true", "profile", "8", 7.25)
    assert [value for _, value in found["recpool_pool_workload_needed_milli"]] == [300, 100]


def test_the_last_decisions_have_a_time_each_with_the_reason():
    decisions = tuple(DecisionReport(float(n), f"cut gpu-{n % 20}", "it wants more") for n in range(100))
    found = samples(replace(EMPTY, decisions=decisions))["recpool_pool_decision_timestamp_seconds"]
    assert {labels["what"]: value for labels, value in found} == {
        f"cut gpu-{n % 20}": float(n) for n in range(100 - LAST_DECISIONS, 100)
    }
    assert {labels["reason"] for labels, _ in found} == {"it wants more"}


def test_a_decision_that_was_made_twice_has_its_last_time():
    found = samples(replace(EMPTY, decisions=(DecisionReport(1.0, "a", "b"), DecisionReport(2.0, "a", "b"))))
    assert found["recpool_pool_decision_timestamp_seconds"] == [({"what": "a", "reason": "b"}, 2.0)]
