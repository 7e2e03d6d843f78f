"""Workloads: what may be declared, what follows from it, and which phases follow which."""

from __future__ import annotations

from typing import get_args

import pytest
from pydantic import ValidationError

from pool.workload import NEXT_PHASES, PRIORITY_OF, RANK, WorkloadPhase, WorkloadSpec, WorkloadState


def spec(**stated) -> WorkloadSpec:
    return WorkloadSpec(**{"name": "ranker", "kind": "inference", "model": "fine", **stated})


@pytest.mark.parametrize(
    ("kind", "priority"),
    [("inference", "guaranteed"), ("warmup", "burstable"), ("evaluate", "burstable"), ("finetune", "best_effort")],
)
def test_priority_follows_the_kind_unless_it_is_stated(kind, priority):
    assert spec(kind=kind).rank == priority
    assert spec(kind=kind, priority="burstable").rank == "burstable"


def test_online_work_gives_way_last():
    assert RANK["guaranteed"] < RANK["burstable"] < RANK["best_effort"]
    assert set(PRIORITY_OF.values()) == set(RANK)


def test_a_workload_wants_its_minimum_unless_it_says_more():
    for kind in ("inference", "finetune"):
        assert spec(kind=kind, min_milli=300, desired_milli=700).wanted_milli == 700
        assert spec(kind=kind, min_milli=300, desired_milli=300).wanted_milli == 300
    assert spec(kind="finetune", min_milli=300).wanted_milli == 300
    assert spec(kind="warmup", min_milli=300).wanted_milli == 300


def test_guaranteed_work_with_an_slo_that_does_not_say_may_grow_to_the_whole_device():
    assert spec(kind="inference", min_milli=300, slo_ms=10).wanted_milli == 1_000
    assert spec(kind="finetune", priority="guaranteed", min_milli=300, slo_ms=10).wanted_milli == 1_000
    assert spec(kind="warmup", min_milli=300, slo_ms=10).wanted_milli == 300
    assert spec(kind="inference", min_milli=300).wanted_milli == 300


def nested(levels: int) -> dict[str, object]:
    options: dict[str, object] = {}
    for _ in range(levels):
        options = {"x": options}
    return options


@pytest.mark.parametrize(
    "options",
    [{"x": float("nan")}, {"x": [1.0, float("inf")]}, {"x": 2**64}, {"x": {"y": -(2**63) - 1}}, nested(1_000)],
    ids=["nan", "infinity", "huge", "very negative", "deep"],
)
def test_options_that_could_not_be_told_again_as_they_are_are_refused(options):
    with pytest.raises(ValidationError, match="options"):
        spec(options=options)


def test_options_come_back_as_they_were():
    options = {"x": [1, -0.5, None, True, "text", {"y": 2**63 - 1}], "deep": nested(50)}
    assert WorkloadSpec.model_validate_json(spec(options=options).model_dump_json()).options == options


def test_what_waits_may_be_parked():
    assert "parked" in NEXT_PHASES["queued"]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", ""),
        ("name", "Ranker"),
        ("name", "-ranker"),
        ("name", "../ranker"),
        ("name", "ranker\n"),
        ("name", "r" * 64),
        ("kind", "training"),
        ("model", ""),
        ("priority", "high"),
        ("min_milli", 0),
        ("min_milli", 1_001),
        ("min_milli", 0.5),
        ("desired_milli", 1_001),
        ("desired_milli", 99),  # below the minimum of 100
        ("memory_bytes", -1),
        ("slo_ms", 0),
        ("slo_ms", float("nan")),
        ("tier", ()),
        ("tier", ("tpu",)),
        ("replicas", 0),
        ("attributes", {"precision": "fp4"}),
        ("attributes", {"pruning": 1.0}),
        ("attributes", {"shards": 0}),
        ("colour", "red"),
    ],
)
def test_a_wrong_declaration_is_refused_by_field(field, value):
    with pytest.raises(ValidationError, match=field):
        spec(**{field: value})


def test_the_longest_name_and_a_whole_device_are_allowed():
    assert spec(name="r" * 63, min_milli=1_000).wanted_milli == 1_000


def test_every_phase_says_what_may_follow_and_no_workload_is_stuck():
    phases = set(get_args(WorkloadPhase))
    assert set(NEXT_PHASES) == phases
    assert all(set(following) <= phases for following in NEXT_PHASES.values())
    for phase in phases - {"succeeded", "cancelled"}:  # the two that are meant to be final
        assert NEXT_PHASES[phase] and _reaches(phase, "queued") and _reaches(phase, "cancelled")
    assert not NEXT_PHASES["succeeded"] and not NEXT_PHASES["cancelled"]


def test_a_workload_without_a_lease_gets_one_before_it_runs():
    for phase, following in NEXT_PHASES.items():
        assert "running" not in following or phase == "starting"


def test_a_new_workload_is_queued_on_no_device():
    state = WorkloadState(spec())
    assert (state.phase, state.device, state.restarts) == ("queued", None, 0)


def _reaches(start: str, goal: str) -> bool:
    seen, left = set(), [start]
    while left:
        phase = left.pop()
        if phase not in seen:
            seen.add(phase)
            left += NEXT_PHASES[phase]  # pyright: ignore[reportArgumentType]
    return goal in seen
