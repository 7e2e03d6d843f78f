"""The segment of a gate: who is in it, and what it refuses to be."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import replace

import pytest

from configs.errors import ArtifactError, Conflict, InvalidRequest, NotFound
from pool.gate.layout import H_LANES, H_VERSION, SIZE_BYTES, SLOTS, WORD_BYTES
from pool.gate.segment import GateSegment


def names(segment):
    return sorted(view.workload for view in segment.read().slots)


def test_a_member_reads_as_it_joined_through_every_view(segment, folder):
    with segment.join("embed", "burstable", 250):
        (view,) = GateSegment.open(folder, "cpu-0").read().slots
        assert (view.workload, view.priority, view.weight_milli) == ("embed", "burstable", 250)
        assert (view.pid, view.command, view.metered_ns, view.steps) == (os.getpid(), "run", 0, 0)
        assert not view.busy
        assert not view.waiting


def test_a_controller_that_comes_back_finds_the_members_in_place(segment, folder, device):
    with segment.join("train", "best_effort", 300):
        assert names(GateSegment.create(folder, device)) == ["train"]


def test_a_slot_that_was_left_is_free_and_its_next_holder_starts_from_nothing(segment):
    first = segment.join("first", "guaranteed", 100)
    with first.busy():
        sum(range(10_000))
    first.leave()
    first.leave()
    assert names(segment) == []
    with segment.join("next", "guaranteed", 100) as second:
        (view,) = segment.read().slots
        assert (second.slot, view.metered_ns, view.generation) == (first.slot, 0, 2)


def test_a_slot_that_was_left_serves_no_more(segment):
    slot = segment.join("gone", "guaranteed", 100)
    slot.leave()
    with pytest.raises(Conflict, match="left"):
        slot.busy()


def test_the_device_has_a_lane_for_each_core(folder, device):
    wide = replace(device, id="wide", cores=(0, 1, 2))
    assert GateSegment.create(folder, wide).read().lanes == 3
    assert GateSegment.create(folder, replace(device, id="gpu-0", kind="gpu", cores=())).read().lanes == 1


def test_a_full_device_names_who_holds_it(segment):
    slots = [segment.join(f"member-{at % 2}", "best_effort", 10) for at in range(SLOTS)]
    assert sorted(slot.slot for slot in slots) == list(range(SLOTS))
    with pytest.raises(Conflict, match=r"all 64 slots are taken, by member-0, member-1"):
        segment.join("late", "best_effort", 10)
    slots[40].leave()
    assert segment.join("late", "best_effort", 10).slot == 40


def test_threads_and_processes_that_join_at_once_all_get_slots_of_their_own(segment, child):
    lines = """
slots = [segment.join(f"of-child", "best_effort", 10).slot for _ in range(8)]
say(*slots)
sys.stdin.read()
"""
    children = [child(lines) for _ in range(3)]
    mine: list[int] = []
    threads = [
        threading.Thread(target=lambda: mine.append(segment.join("mine", "best_effort", 10).slot)) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    theirs = [int(slot) for process in children for slot in process.stdout.readline().split()]
    assert len({*mine, *theirs}) == 8 + 24


def test_members_that_were_killed_are_swept_and_the_living_stay(segment, child):
    lines = """
slot = segment.join(sys.argv[2] if len(sys.argv) > 2 else "mortal", "guaranteed", 100)
slot.busy().__enter__()
say("busy")
sys.stdin.read()
"""
    mortal = child(lines)
    assert mortal.stdout.readline() == "busy\n"
    survivor = segment.join("survivor", "best_effort", 100)
    assert segment.sweep() == ()
    mortal.send_signal(signal.SIGKILL)
    mortal.wait()
    assert survivor.wait_turn(timeout_s=10) is not None, "a dead guaranteed member keeps nobody out"
    assert names(segment) == ["survivor"]


def test_a_joining_member_sweeps_the_dead(segment, child):
    process = child('segment.join("dead", "guaranteed", 100)\nsay("joined")\nsys.stdin.read()')
    process.stdout.readline()
    assert names(segment) == ["dead"]
    process.kill()
    process.wait()
    segment.join("alive", "guaranteed", 100)
    assert names(segment) == ["alive"]


def test_a_forked_child_does_not_keep_its_dead_parents_slot_nor_may_it_use_it(segment, child):
    process = child("""
import os
from configs.errors import Conflict
slot = segment.join("parent", "best_effort", 100)
turn = slot.wait_turn()
pid = os.fork()
if pid:
    sys.stdin.read()
try:
    slot.wait_turn(0.0)
except Conflict as error:
    say("refused", os.getpid())
    time.sleep(60)
""")
    refused, grandchild = process.stdout.readline().split()
    try:
        assert refused == "refused"
        other = segment.join("other", "best_effort", 100)
        assert other.wait_turn(timeout_s=0.05) is None
        process.kill()
        process.wait()
        assert other.wait_turn(timeout_s=10) is not None
        segment.sweep()
        assert names(segment) == ["other"]
    finally:
        os.kill(int(grandchild), signal.SIGKILL)


@pytest.mark.parametrize("name", ["", "Upper", "a/b", "../x", "a" * 64, ".hidden"])
def test_a_workload_needs_a_name_of_a_workload(segment, name):
    with pytest.raises(InvalidRequest):
        segment.join(name, "best_effort", 100)


@pytest.mark.parametrize("weight", [-1, 1001])
def test_a_weight_is_within_the_device(segment, weight):
    with pytest.raises(InvalidRequest, match="weight_milli"):
        segment.join("x", "best_effort", weight)


@pytest.mark.parametrize("device_id", ["../x", "a/b", ".hidden", "x" * 64, "a b"])
def test_a_device_id_that_cannot_name_a_file_is_refused(folder, device, device_id):
    with pytest.raises(InvalidRequest, match="device id"):
        GateSegment.open(folder, device_id)
    with pytest.raises(InvalidRequest, match="device id"):
        GateSegment.create(folder, replace(device, id=device_id))


def test_a_device_without_a_gate_is_not_found(folder):
    with pytest.raises(NotFound, match=r"gpu-7\.gate"):
        GateSegment.open(folder, "gpu-7")


def set_word(content: bytes, word: int, value: int) -> bytes:
    at = word * WORD_BYTES
    return content[:at] + value.to_bytes(WORD_BYTES, "little", signed=True) + content[at + WORD_BYTES :]


@pytest.mark.parametrize(
    ("damage", "says"),
    [
        (lambda content: b"", "0 bytes"),
        (lambda content: content[:-8], "bytes"),
        (lambda content: b"\0" * SIZE_BYTES, "not the segment of a gate"),
        (lambda content: b"x" * SIZE_BYTES, "not the segment of a gate"),
        (lambda content: set_word(content, H_VERSION, 9), "version 9"),
        (lambda content: set_word(content, H_LANES, 0), "lanes: 0"),
        (lambda content: content.replace(b"cpu-0", b"cpu-1"), "made for device 'cpu-1'"),
    ],
)
def test_a_foreign_or_damaged_file_is_refused_and_left_as_it_is(segment, folder, device, damage, says):
    content = damage(segment.path.read_bytes())
    segment.path.write_bytes(content)
    for again in (lambda: GateSegment.open(folder, "cpu-0"), lambda: GateSegment.create(folder, device)):
        with pytest.raises(ArtifactError, match=says) as refusal:
            again()
        assert str(segment.path) in str(refusal.value)
    assert segment.path.read_bytes() == content


def test_a_link_in_place_of_the_segment_is_refused(segment, folder):
    (folder / "other.gate").symlink_to(segment.path)
    with pytest.raises(ArtifactError, match="not the segment"):
        GateSegment.open(folder, "other")


def test_no_draft_stays_behind(segment, folder):
    assert [path.name for path in folder.iterdir()] == ["cpu-0.gate"]
    segment.unlink()
    segment.unlink()
    assert list(folder.iterdir()) == []


def test_a_closed_view_leaves_the_members_of_others_alone(segment, folder):
    other = GateSegment.open(folder, "cpu-0")
    with segment.join("stays", "best_effort", 100) as slot:
        other.close()
        assert slot.wait_turn(timeout_s=1.0) is not None
        assert names(segment) == ["stays"]
    segment.close()
