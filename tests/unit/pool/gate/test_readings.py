"""Shares between two readings of a gate, from metered time."""

from __future__ import annotations

import pytest

from configs.errors import ArtifactError
from pool.gate.layout import COMMAND, PRIORITY, WORD_BYTES, slot_base
from pool.gate.readings import GateReading, SlotView, device_milli, metered_ns, used_milli


def view(slot: int, workload: str, metered: int, generation: int = 1) -> SlotView:
    return SlotView(slot, generation, workload, 1, 1, "best_effort", 100, "run", metered, False, False, 1, 0, 0)


def reading(at_ns: int, *slots: SlotView, lanes: int = 1) -> GateReading:
    return GateReading("cpu-0", at_ns, lanes, slots)


def test_shares_of_the_device_and_of_what_was_used():
    before = reading(1_000, view(0, "infer", 500), view(1, "train", 900), lanes=2)
    after = reading(2_000, view(0, "infer", 1_100), view(1, "train", 1_300), lanes=2)
    assert metered_ns(before, after) == {"infer": 600, "train": 400}
    assert device_milli(before, after) == {"infer": 300, "train": 200}
    assert used_milli(before, after) == {"infer": 600, "train": 400}


def test_slots_of_one_workload_count_together_and_a_new_holder_of_a_slot_from_its_start():
    before = reading(0, view(0, "gone", 700), view(1, "train", 100))
    after = reading(1_000, view(0, "train", 300, generation=2), view(1, "train", 200))
    assert metered_ns(before, after) == {"train": 400}
    assert device_milli(before, after) == {"train": 400}


def test_where_nothing_was_metered_all_shares_are_nothing():
    idle = view(0, "train", 100)
    assert used_milli(reading(0, idle), reading(10, idle)) == {"train": 0}
    assert used_milli(reading(0), reading(10)) == {}


@pytest.mark.parametrize("word", [PRIORITY, COMMAND])
def test_a_slot_with_values_that_do_not_exist_is_damage(segment, word):
    slot = segment.join("train", "best_effort", 100)
    with segment.path.open("r+b") as file:
        file.seek((slot_base(slot.slot) + word) * WORD_BYTES)
        file.write((77).to_bytes(WORD_BYTES, "little"))
    with pytest.raises(ArtifactError, match=r"cpu-0\.gate: damaged"):
        segment.read()
