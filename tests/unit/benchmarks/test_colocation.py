"""The colocation benchmark's arithmetic, on batches and cells made by hand, and its synthetic works."""

from __future__ import annotations

import numpy as np
import pytest

from benchmarks.colocation import works
from benchmarks.colocation.arms import AGAIN, ALONE, ARMS, NAIVE, RECPOOL
from benchmarks.colocation.figures import Cell, Place, floors, reclaim_ms, summarise
from benchmarks.colocation.server import Watched
from configs.errors import ConfigError
from configs.settings import Settings

MS = 1_000_000


def cell(p99_ms: float, busy: float = 0.5, units_per_s: float = 0.0, reclaim: float = 1.0) -> Cell:
    return Cell(np.full(100, p99_ms), 1.0, busy, np.full(10, reclaim), units_per_s)


def test_reclaim_counts_requests_that_found_no_batch_running():
    batches = np.array([[10, 14], [14, 19], [30, 33]]) * MS
    sent_s = np.array([8, 11, 28]) / 1e3  # the second came while the first batch ran
    received_s = np.array([14.5, 19.5, 33.5]) / 1e3
    assert reclaim_ms(batches, sent_s, received_s) == pytest.approx([2.0, 2.0])


def test_reclaim_of_requests_that_shared_a_batch_counts_for_each():
    batches = np.array([[10, 14], [20, 24]]) * MS
    waits = reclaim_ms(batches, np.array([17, 19]) / 1e3, np.array([24.1, 24.2]) / 1e3)
    assert waits == pytest.approx([3.0, 1.0])


def test_no_batches_have_no_reclaim():
    assert not len(reclaim_ms(np.empty((0, 2), np.int64), np.array([1.0]), np.array([2.0])))


def test_ratios_are_to_the_arms_alone_of_the_same_repeat_and_medians_of_the_repeats():
    def of(arm) -> Place:
        return Place("compute", 0.4, arm.name)

    cells = {
        of(ALONE): [cell(10, busy=0.6), cell(100, busy=0.6), cell(10, busy=0.6)],
        of(AGAIN): [cell(10, busy=0.6), cell(100, busy=0.6), cell(30, busy=0.6)],
        of(NAIVE): [cell(50, units_per_s=500)] * 3,
        of(RECPOOL): [cell(11, units_per_s=320), cell(120, units_per_s=320), cell(30, units_per_s=320)],
    }
    found = summarise(cells, {"compute": 1_000.0})
    assert found[of(RECPOOL)]["p99_ratio"] == pytest.approx(1.2)  # of 1.1, 1.2 and 30 / 20
    assert found[of(RECPOOL)]["idle_used"] == pytest.approx(0.8)  # 320 of the 400 that .4 of the device would give
    assert found[of(AGAIN)]["p99_ratio"] == pytest.approx(1.0)
    by_name = {floor.name.split(",")[0]: floor for floor in floors(found, [0, 0])}
    assert by_name["p99 over alone"].met and by_name["idle capacity turned into steps"].met
    assert by_name["reclaim p99"].met and by_name["units of training lost"].met


def test_floors_look_at_the_worst_trainer_up_to_60_percent_load():
    cells = {
        Place(trainer, load, arm.name): [cell(p99_ms if arm is RECPOOL else 10, units_per_s=400)]
        for trainer, load, p99_ms in (("compute", 0.6, 11), ("memory", 0.6, 14), ("memory", 0.8, 90))
        for arm in (ALONE, AGAIN, NAIVE, RECPOOL)
    }
    first, *_, lost = floors(summarise(cells, {"compute": 1_000.0, "memory": 1_000.0}), [0, 3])
    assert (first.value, first.met) == (pytest.approx(1.4), False)
    assert (lost.value, lost.met) == (3.0, False)


def test_a_batch_on_part_of_a_device_takes_as_long_as_on_a_smaller_one(monkeypatch):
    slept_s = []
    monkeypatch.setattr("time.sleep", slept_s.append)
    monkeypatch.setattr("time.thread_time_ns", iter([0, 7 * MS]).__next__)
    watched = Watched(milli=700)
    with watched.busy():
        pass
    assert slept_s == pytest.approx([0.003])
    assert len(watched.taken()) == 1 and not len(watched.taken())


def test_only_one_arm_passes_the_gate_and_the_partition_is_the_whole_device():
    assert [arm.name for arm in ARMS if arm.is_gated] == [RECPOOL.name]
    cut = next(arm for arm in ARMS if arm.serving_milli < 1000)
    assert cut.serving_milli + cut.training_milli == 1000


@pytest.mark.parametrize("kind", works.SYNTHETIC)
def test_a_synthetic_work_goes_on_from_its_checkpoint(kind, tmp_path, monkeypatch):
    monkeypatch.setattr(works, "CELLS", 1 << 10)
    work, again = (works.make(kind, Settings(), tmp_path) for _ in range(2))
    assert work.step(3) == 3
    work.save(tmp_path)
    again.restore(tmp_path)
    assert again.progress().done == 3


def test_an_unknown_trainer_is_refused_by_name(tmp_path):
    with pytest.raises(ConfigError, match="compute"):
        works.make("nothing", Settings(), tmp_path)
