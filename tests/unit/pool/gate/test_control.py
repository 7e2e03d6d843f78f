"""A controller cuts a device anew and commands its members, until a newer one has taken over."""

from __future__ import annotations

import pytest

from configs.errors import Conflict, InvalidRequest, NotFound
from pool.gate.control import GateControl
from pool.gate.readings import weights_milli
from pool.gate.segment import GateSegment


@pytest.fixture
def members(segment):
    return [segment.join(name, "best_effort", 100) for name in ("embed", "train", "train", "train")]


def test_a_new_cut_reaches_the_members_without_a_word_to_them(segment, members, folder):
    GateControl(GateSegment.open(folder, "cpu-0"), epoch=1).set_weights({"embed": 600, "train": 200})
    assert members[0].weight_milli == 600
    split = sorted(slot.weight_milli for slot in members[1:])
    assert split == [66, 67, 67]
    assert weights_milli(segment.read()) == {"embed": 600, "train": 200}


def test_workloads_that_are_not_named_keep_their_weights(segment, members):
    GateControl(segment, epoch=1).set_weights({"embed": 0})
    assert weights_milli(segment.read()) == {"embed": 0, "train": 300}


@pytest.mark.parametrize(
    ("weights", "error"),
    [
        ({"embed": 500, "train": 1001}, InvalidRequest),
        ({"embed": 500, "train": -1}, InvalidRequest),
        ({"embed": 500, "nobody": 100}, NotFound),
    ],
)
def test_a_cut_that_is_refused_changes_nothing(segment, members, weights, error):
    control = GateControl(segment, epoch=1)
    with pytest.raises(error):
        control.set_weights(weights)
    assert weights_milli(segment.read()) == {"embed": 100, "train": 300}


def test_a_command_reaches_every_slot_of_its_workload_and_no_other(segment, members):
    GateControl(segment, epoch=1).command("train", "pause")
    assert [slot.command for slot in members] == ["run", "pause", "pause", "pause"]
    with pytest.raises(NotFound, match="here: embed, train"):
        GateControl(segment, epoch=1).command("nobody", "run")


def test_of_two_controllers_only_the_newer_is_heard(segment, members, folder):
    old = GateControl(segment, epoch=3)
    new = GateControl(GateSegment.open(folder, "cpu-0"), epoch=4)
    for change in (lambda: old.set_weights({"embed": 1}), lambda: old.command("embed", "pause")):
        with pytest.raises(Conflict, match="epoch 3 is over"):
            change()
    with pytest.raises(Conflict, match="epoch 2 is over"):
        GateControl(segment, epoch=2)
    assert members[0].weight_milli == 100
    new.set_weights({"embed": 900})
    assert members[0].weight_milli == 900
