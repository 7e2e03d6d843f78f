"""The parts of a cost add up to the price, whoever used or kept what; a month is what its hours were."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.policy.cost import (
    OTHERS,
    WORKLOADS_KEPT,
    CostBook,
    DeviceCost,
    SliceUse,
    divided,
    month_of,
)
from pool.policy.cost_summary import NOBODY, summary_of

HOUR_S = 3_600.0
GPU = DeviceCost("gpu-0", "gpu", 2.0)
BEGIN_S = datetime(2026, 11, 10, tzinfo=UTC).timestamp()


def use(workload: str, leased: int, used: int, device: str = "gpu-0", **about) -> SliceUse:
    stated = {"kind": "finetune", "model": workload, "team": "", **about}
    return SliceUse(workload, device, leased_milli=leased, used_milli=used, **stated)


def charged(*slices: SliceUse, hours: int = 1, devices: tuple[DeviceCost, ...] = (GPU,)) -> CostBook:
    book = CostBook()
    for hour in range(hours):
        book.charge(BEGIN_S + (hour + 1) * HOUR_S - 1, HOUR_S, devices, slices)
    return book


@pytest.mark.parametrize(
    ("used", "leased", "pays_used", "pays_kept"),
    [
        ([300], [500], [300], [200]),  # kept and not used is paid
        ([800, 100], [100, 600], [800, 100], [0, 100]),  # what was lent to another is paid by that one
        ([0, 0], [400, 200], [0, 0], [400, 200]),
        ([900, 300], [0, 0], [750, 250], [0, 0]),  # metering showed more than there is
        ([], [], [], []),
    ],
)
def test_use_is_paid_first_then_what_was_kept_as_far_as_the_device_reaches(used, leased, pays_used, pays_kept):
    assert divided(used, leased) == (pytest.approx(pays_used), pytest.approx(pays_kept))


@given(st.lists(st.tuples(st.integers(0, 1_000), st.integers(0, 1_000)), max_size=6))
def test_nobody_pays_less_than_nothing_and_all_together_never_more_than_the_device(slices):
    used, kept = divided([each[0] for each in slices], [each[1] for each in slices])
    assert all(each >= 0 for each in (*used, *kept))
    assert sum(used) + sum(kept) <= 1_000 + 1e-6
    assert all(mine <= stated[0] + 1e-9 for mine, stated in zip(used, slices, strict=True))


def test_slice_seconds_at_the_price_of_their_device():
    book = charged(use("serve", 500, 250, kind="inference"), use("train", 100, 400), hours=3)
    serve, train = book.month.workloads["serve"], book.month.workloads["train"]
    assert (serve.used_s, serve.reserved_s) == (pytest.approx(0.25 * 3 * HOUR_S), pytest.approx(0.25 * 3 * HOUR_S))
    assert (serve.cost, train.cost) == (pytest.approx(0.5 * 2.0 * 3), pytest.approx(0.4 * 2.0 * 3))
    assert (book.month.total, book.month.idle) == (pytest.approx(6.0), pytest.approx(0.1 * 2.0 * 3))


def test_a_slice_of_a_device_that_is_not_there_costs_nothing():
    assert charged(use("train", 500, 500, device="gone")).month.workloads == {}


def test_inference_is_divided_by_the_requests_of_each_scene():
    scenes = {"home": 30.0, "detail": 10.0}
    book = charged(use("serve", 400, 400, kind="inference", scenes=scenes), use("train", 100, 100))
    found = summary_of(book, BEGIN_S + HOUR_S, [GPU])
    assert {line.name: line.cost for line in found.scenes} == pytest.approx({"home": 0.6, "detail": 0.2})


def test_costs_by_model_and_team_add_up_workloads():
    slices = [use("a", 100, 0, team="ads"), use("b", 200, 0, team="ads", model="a"), use("c", 300, 0)]
    found = summary_of(charged(*slices), BEGIN_S + HOUR_S, [GPU])
    assert {line.name: line.cost for line in found.teams} == pytest.approx({"ads": 0.6, NOBODY: 0.6})
    assert {line.name: line.cost for line in found.models} == pytest.approx({"a": 0.6, "c": 0.6})
    assert [line.name for line in found.workloads] == ["c", "b", "a"], "the dearest first"


def test_dedicated_devices_would_have_held_each_peak_for_as_long_as_it_lived():
    two = (GPU, DeviceCost("gpu-1", "gpu", 2.0))
    copies = [use("serve", 300, 700, "gpu-0"), use("serve", 300, 600, "gpu-1"), use("train", 300, 300, "gpu-1")]
    found = summary_of(charged(*copies, hours=5, devices=two), BEGIN_S + 5 * HOUR_S, two)
    assert found.dedicated == pytest.approx((2 + 1) * 2.0 * 5)
    assert found.saved == pytest.approx(3 * 2.0 * 5 - 2 * 2.0 * 5)


def test_the_month_is_expected_to_go_on_as_its_whole_hours_were():
    hours = 36
    book = charged(use("train", 1_000, 1_000), hours=hours)
    now_s = BEGIN_S + hours * HOUR_S
    left_hours = (datetime(2026, 12, 1, tzinfo=UTC).timestamp() - now_s) / HOUR_S
    told = book.forecast(now_s)
    assert (told.so_far, told.based_on_hours) == (pytest.approx(2.0 * hours), hours)
    assert told.expected == pytest.approx(2.0 * hours + 2.0 * left_hours)


def test_time_that_nobody_saw_is_reckoned_at_the_rate_of_what_was_seen_and_charged_to_nobody():
    book = charged(use("train", 1_000, 1_000), hours=2)
    book.passed(BEGIN_S + 4 * HOUR_S, 2 * HOUR_S)
    assert book.month.total == pytest.approx(4.0)
    assert book.forecast(BEGIN_S + 4 * HOUR_S).so_far == pytest.approx(8.0)
    assert summary_of(book, BEGIN_S + 4 * HOUR_S, [GPU]).unobserved_hours == pytest.approx(2)


def test_a_new_month_begins_at_nothing_and_the_one_before_is_kept():
    book = CostBook()
    december_s = datetime(2026, 12, 1, tzinfo=UTC).timestamp()
    book.charge(december_s - 1, 60.0, [GPU], [use("train", 500, 500)])
    book.charge(december_s + 60, 60.0, [GPU], [])
    assert (book.month.name, month_of(december_s)) == ("2026-12", "2026-12")
    assert book.before is not None and "train" in book.before.workloads
    assert book.month.workloads == {}
    book.charge(december_s - 30, 60.0, [GPU], [])
    assert book.month.name == "2026-12", "a clock that goes back does not bring the old month back"


@pytest.mark.parametrize("now", [datetime(2026, 11, 30, 23), datetime(2026, 12, 31, 23), datetime(2028, 2, 29, 23)])
def test_the_last_hour_of_a_month_is_its_last(now):
    book, at_s = CostBook(), now.replace(tzinfo=UTC).timestamp()
    book.charge(at_s, HOUR_S, [GPU], [])
    assert book.forecast(at_s).expected == pytest.approx(2.0 + 2.0)


def test_of_very_many_workloads_those_that_ended_first_become_one_and_nothing_is_lost():
    book = CostBook()
    for job in range(WORKLOADS_KEPT + 5):
        book.charge(BEGIN_S + job, 1.0, [GPU], [use(f"job-{job}", 1_000, 1_000)])
    month = book.month
    assert len(month.workloads) <= WORKLOADS_KEPT + 1 and OTHERS in month.workloads
    assert f"job-{WORKLOADS_KEPT + 4}" in month.workloads and "job-0" not in month.workloads
    assert sum(each.cost for each in month.workloads.values()) == pytest.approx(month.total)
    dedicated = sum(each.dedicated for each in month.workloads.values())
    assert dedicated == pytest.approx(month.total)


def test_saved_and_restored_it_goes_on_the_same():
    book = charged(use("serve", 500, 250, kind="inference", scenes={"home": 1.0}), hours=30)
    restored = CostBook.restored(json.loads(json.dumps(book.plain())))
    for each in (book, restored):
        each.charge(BEGIN_S + 40 * HOUR_S, 1.0, [GPU], [use("serve", 500, 900)])
    assert summary_of(restored, BEGIN_S + 40 * HOUR_S, [GPU]) == summary_of(book, BEGIN_S + 40 * HOUR_S, [GPU])
    with pytest.raises(ValueError, match="format 7"):
        CostBook.restored({"format": 7})
