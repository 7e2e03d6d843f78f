"""The pool for people: metered time beside what is leased, who waits, and what was decided."""

from __future__ import annotations

import io
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from deployments.pool_top import HANGS_AFTER_S, cost_lines, device_line, lines, percent, picture, shares, workload_line
from pool.views import CostReport, DecisionReport, PoolReport
from tests.unit.deployments.pools import GIB, device, full_report, slice_of, workload


def drawn(report: PoolReport, width: int = 200) -> list[str]:
    """What a terminal of so many characters a line would show."""
    console = Console(file=io.StringIO(), width=width)
    console.print(picture(report, width))
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore


@pytest.fixture(params=[lines, drawn])
def shown(request):
    """The report as text, from either form."""
    return request.param


def row(of: list[str], name: str) -> list[str]:
    return next(line.split() for line in of if line.split()[:1] == [name])


def figures(of: list[str], name: str) -> str:
    """A slice's row from its version on."""
    return " ".join(row(of, name)[-10:])


def test_a_device_reads_as_what_its_time_went_to_beside_what_was_leased():
    line = device_line(full_report().devices[0])
    assert line == (
        "gpu-0 gpu (emulated): 30% inference + 40% warm-up + 30% fine-tune; "
        "leased 20% inference + 40% warm-up + 30% fine-tune, 10% free; 3.0 of 8.0 GiB"
    )


def test_slices_of_one_kind_are_summed_and_none_is_idle():
    two = (slice_of("inference", 105, 100), slice_of("inference", 95, 150), slice_of("evaluate", 0, 50))
    assert "gpu-0 gpu (emulated): 20% inference; leased 25% inference + 5% evaluation" in device_line(
        device(slices=two)
    )
    assert device_line(device("cpu-1", label="cpu")).startswith("cpu-1 cpu: idle; leased nothing, 100% free")


@pytest.mark.parametrize(
    ("milli", "text"), [(0, "0%"), (1, "<1%"), (9, "<1%"), (10, "1%"), (333, "33%"), (999, "100%"), (1000, "100%")]
)
def test_what_is_small_is_not_nothing(milli, text):
    assert percent(milli) == text


@given(st.lists(st.tuples(st.sampled_from(["inference", "warmup", "evaluate", "finetune"]), st.integers(0, 1000))))
def test_every_kind_that_took_time_is_named_once_and_no_other(of):
    text = shares(of)
    names = {"inference": "inference", "warmup": "warm-up", "evaluate": "evaluation", "finetune": "fine-tune"}
    for kind, name in names.items():
        took = sum(milli for each, milli in of if each == kind)
        assert text.count(name) == (1 if took else 0)


def test_a_slice_shows_its_figures_and_a_dash_where_it_has_none(shown):
    text = shown(full_report())
    assert figures(text, "inference-1") == "7 20% 20% 30% 1.0 25% 3 - - 0"
    assert figures(text, "warmup-1") == "- 40% 40% 40% 1.0 - 0 60% - 0"
    assert figures(text, "finetune-1") == "- 30% 30% 30% 1.0 - 0 12% 41.5 17"


def test_a_shadow_and_a_device_that_is_not_well_say_so(shown):
    slices = (slice_of("inference", 0, 0, shadow=True),)
    text = shown(replace(full_report(), devices=(device(slices=slices, health="draining"),)))
    assert any("inference-1 (shadow)" in line for line in text)
    assert any(line.startswith("gpu-0") and line.endswith("draining") for line in text)


def test_who_waits_is_listed_with_the_reason_and_who_is_done_is_not(shown):
    done = workload("done", phase="succeeded")
    text = shown(replace(full_report(), workloads=(*full_report().workloads, done)))
    assert "  nightly  fine-tune, best effort  preempted, 40% done: gave way to inference-1 (waits 12 s)" in text
    assert not any("done  fine-tune" in line for line in text)


def test_the_last_decisions_come_with_their_reasons_newest_first(shown):
    many = tuple(DecisionReport(float(at), f"park w{at}", f"because {at}") for at in range(20))
    text = shown(replace(full_report(), decisions=many))
    told = [line.split()[-1] for line in text if "because" in line]
    assert told == [str(at) for at in range(19, 11, -1)]


def test_a_controller_that_hangs_is_noticed(shown):
    assert "hangs" not in shown(full_report())[0]
    assert "the controller hangs" in shown(replace(full_report(), age_s=HANGS_AFTER_S + 1))[0]


def test_an_empty_pool_is_one_line(shown):
    assert len(shown(PoolReport(epoch=1, age_s=0.0, devices=(), workloads=(), decisions=()))) == 1


@pytest.mark.parametrize("width", [80, 100, 120])
def test_a_narrow_terminal_leaves_columns_out_and_breaks_none(width):
    text = drawn(full_report(), width)
    heading = next(line.split() for line in text if line.startswith("workload"))
    needed = ["workload", "kind", "leased", "metered", "headroom", "queue", "done", "steps/s", "yielded"]
    assert [name for name in heading if name in needed] == needed
    assert len(row(text, "inference-1")) == len(heading)


def test_what_would_steer_a_terminal_is_not_printed(shown):
    evil = workload("w", phase="queued", reason="\x1b[2J\nroot: [bold]yes[/bold]")
    text = shown(replace(full_report(), workloads=(evil,)))
    assert not any("\x1b" in line for line in text)
    assert any("?[2J?root: [bold]yes[/bold]" in line for line in text)


def test_a_workload_that_came_back_says_how_often():
    parked = workload("w", phase="parked", reason="5 crashes in 600 s", restarts=5, device="gpu-0")
    assert workload_line(parked) == "w  fine-tune, best effort  parked on gpu-0, 5 restarts: 5 crashes in 600 s"


def test_memory_is_what_is_held_of_what_there_is():
    slices = (slice_of("finetune", 0, 100, memory_bytes=3 * GIB // 2),)
    assert device_line(device(slices=slices)).endswith("; 1.5 of 8.0 GiB")


def test_a_workload_tells_what_was_predicted_what_was_measured_and_why_it_is_there():
    costs = (
        CostReport("gpu", 8, 5.5, 7.25, True, 300, "profile"),
        CostReport("npu", 1, 2.5, None, False, 1200, "roofline"),
    )
    assert cost_lines(workload("warm", placement="it fits", costs=costs)) == [
        "placed  it fits",
        "gpu  p99 of 8 rows: predicted 5.5 ms, measured (emulated) 7.25 ms; needs 30% of a device by measurement",
        "npu  p99 of 1 rows: predicted 2.5 ms, measured -; needs 120% of a device by its graph",
    ]
    assert cost_lines(workload("warm")) == []
