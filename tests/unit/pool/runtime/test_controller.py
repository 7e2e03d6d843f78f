"""A workload's life under the controller, with hosts that do as a test lets them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from configs.errors import Conflict, InvalidRequest, NotFound

GIB = 1 << 30


def test_a_workload_is_placed_runs_and_ends_and_its_lease_is_given_back(run):
    run.submit("night", memory_bytes=1_000)
    assert run.phase("night") == "queued"
    run.tick()
    assert run.phase("night") == "starting"
    [order] = run.ground.orders.values()
    assert (order.lease.milli, order.lease.memory_bytes, order.device.id) == (300, 1_000, order.lease.device)
    run.ground.runs(order.lease.id, 4, 10)
    run.tick()
    report = run.controller.workload("night")
    assert (report.phase, report.progress, report.device) == ("running", 0.4, order.device.id)
    run.ground.ends(order.lease.id, "succeeded", version=7)
    run.tick()
    assert run.controller.workload("night").result == {"version": 7}
    assert run.phase("night") == "succeeded"
    assert run.book() == {} and run.ground.hosts == {}


def test_a_preempted_workload_has_its_lease_until_its_host_has_left_and_waits_for_a_person(run):
    lease = run.started("night")
    assert run.controller.preempt("night", "somebody asked").phase == "preempted"
    assert run.ground.told[-1] == (lease, "preempt")
    run.tick(3)
    assert lease in run.book(), "it has not left yet"
    run.ground.ends(lease, "preempted")
    run.tick(100)
    assert (run.phase("night"), run.book()) == ("preempted", {})
    assert run.controller.workload("night").reason == "somebody asked"

    assert run.controller.resume("night").phase == "queued"
    run.tick()
    assert run.lease("night") != lease


def test_a_slice_that_is_to_be_free_soon_is_not_leased_before_it_is(run):
    first = run.started("small", min_milli=800)
    run.started("other", min_milli=800)
    run.submit("guaranteed", priority="guaranteed", min_milli=800)
    run.tick(3)
    [victim] = {lease for lease, verb in run.ground.told if verb == "preempt"}
    assert set(run.book().values()) == {"small", "other"}
    run.ground.ends(victim, "preempted")
    run.tick(2)
    assert "guaranteed" in run.book().values() and victim not in run.book()
    assert first in run.book() or victim == first
    assert any("makes room for guaranteed" in each.reason for each in run.controller.report().decisions)


def test_a_workload_moves_once_its_host_has_left_the_old_device(run):
    lease = run.started("night")
    here = run.controller.workload("night").device
    there = "gpu-1" if here == "gpu-0" else "gpu-0"
    assert run.controller.migrate("night", there).phase == "migrating"
    run.tick(2)
    assert len(run.ground.orders) == 1, "two copies of one work never run"
    assert sorted(run.book().values()) == ["night", "night"], "both places are its own until it has moved"
    run.ground.ends(lease, "preempted")
    run.tick()
    [order] = [order for key, order in run.ground.orders.items() if key != lease]
    assert order.device.id == there
    run.ground.runs(order.lease.id)
    run.tick()
    assert (run.phase("night"), run.controller.workload("night").device) == ("running", there)
    assert len(run.book()) == 1


def test_over_commitment_is_refused_with_the_book_and_nothing_changes(run):
    run.started("big", min_milli=900)
    lease = run.started("night", min_milli=300)
    [full] = [device.id for device in run.controller.report().devices if device.free_milli == 100]
    before = run.book()
    with pytest.raises(Conflict, match="big 900 milli"):
        run.controller.migrate("night", full)
    with pytest.raises(InvalidRequest, match="memory_bytes.*book of epoch"):
        run.submit("huge", memory_bytes=GIB + 1)
    with pytest.raises(NotFound, match="no device 'gpu-9'.*big 900 milli"):
        run.controller.migrate("night", "gpu-9")
    run.tick()
    assert run.book() == before and run.lease("night") == lease and run.phase("night") == "running"


@pytest.mark.parametrize("verb", ["preempt", "cancel"])
def test_an_unknown_name_lists_the_known_ones(run, verb):
    run.submit("night")
    with pytest.raises(NotFound, match="known: night"):
        getattr(run.controller, verb)("day", "why")


def test_what_its_phase_does_not_allow_is_refused_naming_the_phases_that_do(run):
    run.submit("night")
    with pytest.raises(Conflict, match="night is queued and cannot be preempted; that can: running"):
        run.controller.preempt("night", "why")
    with pytest.raises(Conflict, match="night is queued and cannot be resumed"):
        run.controller.resume("night")
    with pytest.raises(Conflict, match="exists and is queued"):
        run.submit("night")


def test_a_cancelled_workload_is_stopped_and_its_name_is_free_once_it_has_left(run):
    lease = run.started("night")
    assert run.controller.cancel("night", "no more").phase == "cancelled"
    assert run.ground.told[-1] == (lease, "stop")
    with pytest.raises(Conflict, match="has not left"):
        run.submit("night")
    run.ground.ends(lease, "stopped")
    run.tick()
    run.submit("night")
    assert run.phase("night") == "queued"


def test_a_host_that_dies_is_started_again_after_a_while_and_parked_when_it_goes_on(run):
    for crash in (1, 2):
        run.submit("night") if crash == 1 else None
        run.tick(20)
        lease = run.lease("night")
        run.ground.lost = {lease: "its process died"}
        run.tick()
        report = run.controller.workload("night")
        assert (report.phase, report.restarts) == ("queued", crash)
        assert "its process died" in report.reason
        assert run.book() == {}
    run.tick(20)
    run.ground.lost = {run.lease("night"): "its process died"}
    run.tick(2)
    report = run.controller.workload("night")
    assert report.phase == "parked"
    assert "crashed 3 times" in report.reason and "its process died" in report.reason
    run.tick(1_000)
    assert run.phase("night") == "parked"
    run.controller.resume("night")
    run.tick()
    assert run.phase("night") == "starting"


def test_work_that_cannot_be_done_fails_with_the_reason_and_is_not_tried_again(run):
    lease = run.started("night")
    run.ground.ends(lease, "failed", "no such dataset")
    run.tick(100)
    report = run.controller.workload("night")
    assert (report.phase, report.reason, report.restarts) == ("failed", "no such dataset", 0)
    assert len(run.ground.orders) == 1


def test_work_whose_node_is_lost_goes_back_to_the_queue_uncounted_and_on_elsewhere(run):
    run.ground.node_list.append(replace(run.ground.node_list[0], id="n2", name="second", is_head=False))
    run.ground.found["n2"] = run.ground.found["n1"]
    lease = run.started("night")
    run.ground.node_list[0] = replace(run.ground.node_list[0], is_alive=False)
    run.ground.lost = {lease: "its node died"}
    run.tick(8)
    report = run.controller.workload("night")
    assert (report.phase, report.restarts) == ("queued", 0)
    assert run.book() == {}
    assert {device.health for device in run.controller.report().devices} == {"dead"}


def test_a_host_that_says_nothing_for_long_is_ended_and_counted(run):
    lease = run.started("night")
    run.ground.silent.add(lease)
    run.tick(100, every_s=1)
    assert lease in run.ground.killed
    assert run.controller.workload("night").restarts == 1


def test_a_silent_agent_makes_its_devices_suspect_and_warns_what_runs_there_once(run):
    lease = run.started("night")
    run.ground.silent_nodes.add("n1")
    run.tick(10, every_s=1)
    assert {device.health for device in run.controller.report().devices} == {"suspect"}
    assert run.ground.told.count((lease, "warn")) == 1
    run.ground.silent_nodes.clear()
    run.tick()
    assert {device.health for device in run.controller.report().devices} == {"alive"}


def test_an_agent_that_was_started_again_gets_its_gates_back(run):
    run.tick()
    run.ground.opened["n1"] = ()
    run.tick()
    assert set(run.ground.opened["n1"]) == {"gpu-0", "gpu-1"}


def test_a_decision_that_takes_several_ticks_is_told_once(run):
    run.started("big", min_milli=1_000, kind="warmup")
    run.started("other", min_milli=1_000, kind="warmup")
    run.submit("third", min_milli=1_000, kind="warmup")
    told = len(run.controller.report().decisions)
    run.tick(50)
    assert len(run.controller.report().decisions) == told
    assert "free" in run.controller.workload("third").reason


def test_fine_tuning_has_one_copy(run):
    with pytest.raises(InvalidRequest, match="replicas"):
        run.submit("night", replicas=2)


def test_every_copy_of_a_warm_up_has_a_host_of_its_own(run):
    run.submit("warm", kind="warmup", replicas=2)
    run.tick()
    assert {order.device.id for order in run.ground.orders.values()} == {"gpu-0", "gpu-1"}


def test_work_that_is_resumed_before_its_host_has_left_starts_again_only_after_that(run):
    lease = run.started("night")
    run.controller.preempt("night", "somebody asked")
    run.controller.resume("night")
    run.tick(3)
    assert list(run.ground.hosts) == [lease]
    run.ground.ends(lease, "preempted")
    run.tick(2)
    [again] = run.ground.hosts
    assert again != lease


def test_a_move_is_called_off_when_the_work_fails_meanwhile(run):
    lease = run.started("night")
    here = run.controller.workload("night").device
    run.controller.migrate("night", {"gpu-0": "gpu-1", "gpu-1": "gpu-0"}[here])
    run.ground.ends(lease, "failed", "no such dataset")
    run.tick(3)
    assert (run.phase("night"), run.book(), run.ground.hosts) == ("failed", {}, {})
