"""The gate's promises: guaranteed work goes first, all other work one at a time, whoever dies in between."""

from __future__ import annotations

import signal
import threading
import time

import pytest

from configs.errors import Conflict
from pool.gate import table
from pool.gate.control import GateControl

BRIEF_S = 0.02
LONG_S = 10.0


class Steps:
    """A meter whose clock is moved by hand."""

    def __init__(self):
        self.now_ns = 0

    def start(self) -> int:
        return self.now_ns

    def stop(self, mark: int) -> int:
        return self.now_ns - mark


def test_no_turn_begins_while_guaranteed_work_is_busy(segment):
    first, rest = segment.join("infer", "guaranteed", 100), segment.join("train", "best_effort", 100)
    with first.busy():
        assert rest.wait_turn(BRIEF_S) is None
        with first.busy():
            pass
        assert rest.wait_turn(BRIEF_S) is None, "busy until the outermost of it ends"
    assert rest.wait_turn(LONG_S) is not None


def test_an_announced_request_holds_turns_back_until_it_was_served_or_does_not_come(segment, monkeypatch):
    monkeypatch.setattr(table, "ANNOUNCED_NS", 60_000_000_000)
    first, rest = segment.join("infer", "guaranteed", 100), segment.join("train", "burstable", 100)
    first.announce()
    assert rest.wait_turn(BRIEF_S) is None
    with first.busy():
        pass
    turn = rest.wait_turn(LONG_S)
    assert turn is not None
    turn.release()
    first.announce()
    assert rest.wait_turn(BRIEF_S) is None
    monkeypatch.setattr(table, "ANNOUNCED_NS", 1)
    assert rest.wait_turn(LONG_S) is not None


def test_a_turn_under_way_is_told_that_guaranteed_work_wants_the_device(segment):
    first, rest = segment.join("infer", "guaranteed", 100), segment.join("train", "best_effort", 100)
    with rest.wait_turn(LONG_S) as turn:
        assert not turn.must_yield
        with first.busy():
            assert turn.must_yield
        assert not turn.must_yield


def test_guaranteed_members_do_not_wait_for_each_other_nor_for_a_turn(segment):
    one, two, rest = (
        segment.join(name, p, 1) for name, p in (("a", "guaranteed"), ("b", "guaranteed"), ("c", "burstable"))
    )
    with rest.wait_turn(LONG_S), one.busy(), two.busy():
        assert sum(view.busy for view in segment.read().slots) == 3


def test_threads_of_one_guaranteed_member_are_busy_until_the_last_is_done(segment):
    first, rest = segment.join("infer", "guaranteed", 100), segment.join("train", "best_effort", 100)
    inside, done = threading.Event(), threading.Event()

    def other():
        with first.busy():
            inside.set()
            done.wait()

    thread = threading.Thread(target=other)
    thread.start()
    inside.wait()
    with first.busy():
        pass
    assert rest.wait_turn(BRIEF_S) is None
    done.set()
    thread.join()
    assert rest.wait_turn(LONG_S) is not None
    assert next(view.steps for view in segment.read().slots if view.workload == "infer") == 2


def test_one_turn_at_a_time(segment):
    one, two = segment.join("one", "burstable", 500), segment.join("two", "best_effort", 500)
    with one.wait_turn(LONG_S):
        assert two.wait_turn(BRIEF_S) is None
    assert two.wait_turn(LONG_S) is not None


def test_turns_of_several_processes_never_overlap_nor_begin_within_guaranteed_work(segment, child):
    """Every process writes down when it had the device; the clock is the machine's."""
    sharer = """
slot = segment.join("sharer", "best_effort", 300)
say("ready")
sys.stdin.readline()
for _ in range(150):
    turn = slot.wait_turn(20.0)
    with turn:
        until = time.monotonic_ns() + 300_000
        while time.monotonic_ns() < until:
            pass
        end = time.monotonic_ns()
    say("turn", turn.begun_ns, end)
"""
    first = """
slot = segment.join("first", "guaranteed", 300)
say("ready")
sys.stdin.readline()
for _ in range(150):
    with slot.busy():
        begun = time.monotonic_ns()
        until = begun + 300_000
        while time.monotonic_ns() < until:
            pass
        end = time.monotonic_ns()
    say("busy", begun, end)
    time.sleep(0.001)
"""
    children = [child(lines) for lines in (sharer, sharer, sharer, first)]
    for process in children:
        assert process.stdout.readline() == "ready\n"
    for process in children:
        process.stdin.write("go\n")
        process.stdin.flush()
    lines = [line.split() for process in children for line in process.communicate()[0].splitlines()]
    turns = sorted((int(begun), int(end)) for what, begun, end in lines if what == "turn")
    busy = sorted((int(begun), int(end)) for what, begun, end in lines if what == "busy")
    assert (len(turns), len(busy)) == (450, 150)
    assert all(end <= begun for (_, end), (begun, _) in zip(turns, turns[1:], strict=False))
    assert not [(turn, guaranteed) for turn, _ in turns for guaranteed in busy if guaranteed[0] < turn < guaranteed[1]]


def test_a_holder_killed_in_its_turn_gives_the_device_back(segment, child):
    process = child("""
slot = segment.join("doomed", "best_effort", 900)
with slot.wait_turn():
    say("in")
    sys.stdin.read()
""")
    assert process.stdout.readline() == "in\n"
    heir = segment.join("heir", "best_effort", 100)
    assert heir.wait_turn(BRIEF_S) is None
    process.send_signal(signal.SIGKILL)
    process.wait()
    with heir.wait_turn(LONG_S):
        pass
    segment.sweep()
    assert [view.workload for view in segment.read().slots] == ["heir"]


def test_a_member_that_stands_still_while_waiting_holds_nobody_up(segment, child):
    process = child("""
slot = segment.join("stopped", "best_effort", 900)
say("waiting")
slot.wait_turn()
""")
    mine = segment.join("mine", "best_effort", 100)
    with mine.wait_turn(LONG_S):
        assert process.stdout.readline() == "waiting\n"
        while not any(view.waiting for view in segment.read().slots):
            time.sleep(0.001)
        process.send_signal(signal.SIGSTOP)
    assert mine.wait_turn(LONG_S) is not None


def test_device_time_is_metered_for_its_member_alone(segment):
    infer_meter, train_meter = Steps(), Steps()
    first = segment.join("infer", "guaranteed", 100, infer_meter)
    rest = segment.join("train", "best_effort", 100, train_meter)
    segment.join("idle", "best_effort", 100)
    for took in (3_000, 4_000):
        with first.busy():
            infer_meter.now_ns += took
    with rest.wait_turn(LONG_S) as turn:
        train_meter.now_ns += 5_000
    assert turn.metered_ns == 5_000
    views = {view.workload: (view.metered_ns, view.steps) for view in segment.read().slots}
    assert views == {"infer": (7_000, 2), "train": (5_000, 1), "idle": (0, 0)}


def test_the_cpu_time_of_the_thread_is_metered_when_nothing_else_is_said(segment):
    slot = segment.join("infer", "guaranteed", 100)
    before = time.thread_time_ns()
    with slot.busy():
        time.sleep(0.01)
        sum(range(300_000))
    assert 0 < slot.metered_ns <= time.thread_time_ns() - before


@pytest.mark.parametrize("priority", ["guaranteed", "best_effort"])
def test_work_that_fails_is_metered_and_gives_the_device_back(segment, priority):
    meter = Steps()
    failing, other = segment.join("failing", priority, 100, meter), segment.join("other", "best_effort", 100)
    with pytest.raises(ZeroDivisionError), failing.busy() if priority == "guaranteed" else failing.wait_turn(LONG_S):
        meter.now_ns += 70
        _ = 1 / 0
    assert failing.metered_ns == 70
    assert other.wait_turn(LONG_S) is not None


@pytest.mark.parametrize("priority", ["guaranteed", "best_effort"])
def test_a_meter_that_fails_does_not_keep_the_device(segment, priority):
    class Broken(Steps):
        def start(self) -> int:
            raise RuntimeError("no device")

    failing, other = segment.join("failing", priority, 100, Broken()), segment.join("other", "best_effort", 100)
    with pytest.raises(RuntimeError), failing.busy() if priority == "guaranteed" else failing.wait_turn(LONG_S):
        pass
    assert other.wait_turn(LONG_S) is not None


def test_a_paused_member_waits_and_one_told_to_yield_is_let_go(segment):
    slot, control = segment.join("train", "best_effort", 100), GateControl(segment, epoch=1)
    control.command("train", "pause")
    assert slot.wait_turn(BRIEF_S) is None
    assert slot.command == "pause"
    control.command("train", "run")
    with slot.wait_turn(LONG_S) as turn:
        control.command("train", "yield")
        assert turn.must_yield
    assert slot.wait_turn() is None
    assert slot.command == "yield"


def test_a_wait_that_guaranteed_work_prolongs_is_counted_once(segment):
    first, rest = segment.join("infer", "guaranteed", 100), segment.join("train", "best_effort", 100)
    for _ in range(2):
        with first.busy():
            rest.wait_turn(BRIEF_S)
    rest.wait_turn(LONG_S)
    assert [view.preemptions for view in segment.read().slots if view.workload == "train"] == [2]


def test_each_priority_uses_the_gate_in_its_own_way(segment):
    first, rest = segment.join("infer", "guaranteed", 100), segment.join("train", "best_effort", 100)
    with pytest.raises(Conflict, match="for guaranteed"):
        rest.busy()
    with pytest.raises(Conflict, match="for guaranteed"):
        rest.announce()
    with pytest.raises(Conflict, match="turns for all others"):
        first.wait_turn(BRIEF_S)


def test_a_second_turn_is_refused_while_the_first_has_not_ended(segment):
    slot = segment.join("train", "best_effort", 100)
    turn = slot.wait_turn(LONG_S)
    with pytest.raises(Conflict, match="has not ended"):
        slot.wait_turn(BRIEF_S)
    turn.release()
    with slot.wait_turn(LONG_S):
        turn.release()
        other = segment.join("other", "best_effort", 100)
        assert other.wait_turn(BRIEF_S) is None, "the turn that ended before ends no other"


def test_leaving_within_a_turn_gives_the_device_back_and_spoils_nobodys_account(segment):
    leaver = segment.join("leaver", "best_effort", 100)
    with leaver.wait_turn(LONG_S):
        leaver.leave()
        heir = segment.join("heir", "best_effort", 100)
        assert heir.slot == leaver.slot
        heir.wait_turn(LONG_S).release()
    assert heir.metered_ns == 0
    assert heir.wait_turn(LONG_S) is not None
