from __future__ import annotations

import pytest

from configs.pool_settings import PoolSettings
from pool.policy.decisions import Grant, Migrate, Park, Preempt, PromoteShadow, Release, Requeue, Resume, SetShares
from pool.policy.observation import LeaseView, PlannerState


def kinds(decisions) -> list[str]:
    return [type(each).__name__ for each in decisions]


def only(decisions, kind):
    return [each for each in decisions if isinstance(each, kind)]


# A pool at rest


def test_a_pool_that_is_as_it_should_be_gets_no_decision(world):
    pool = world().device("a").device("b").running("online", ["a", "b"]).running("train", "a", "finetune")
    assert pool.decide() == ()
    assert pool.decide() == ()


def test_an_empty_pool_is_no_error(world):
    assert world().decide() == ()
    pool = world().workload("online")
    assert pool.decide() == ()
    assert "no device" in pool.state.waiting["online"]


def test_what_did_not_happen_is_decided_again(world):
    pool = world().device("a").workload("online")
    assert kinds(pool.decide()) == kinds(pool.decide()) == ["Grant"]


def test_a_lease_of_unknown_work_is_left_alone_and_never_gives_way(world):
    pool = world().device("a")
    pool.leases["9-1"] = LeaseView("9-1", "stranger", "a", 900, 0)
    pool.workload("online")
    assert pool.decide() == ()
    assert "most free share 100" in pool.state.waiting["online"]


# Queued work


def test_idle_slices_are_filled_by_priority_and_then_by_age(world):
    pool = world().device("a")
    pool.workload("young", "finetune", 400, age_s=1).workload("old", "finetune", 400, age_s=9)
    pool.workload("warm", "warmup", 400)
    assert [(each.workload, each.device) for each in pool.step()] == [("warm", "a"), ("old", "a")]
    assert list(pool.state.waiting) == ["young"]


def test_what_is_too_large_does_not_hold_up_what_fits(world):
    pool = world().device("a").workload("large", "finetune", 1000, age_s=9).workload("small", "finetune", 200)
    pool.running("online", "a")
    assert [each.workload for each in pool.step()] == ["small"]


def test_copies_are_counted_and_spread(world):
    pool = world().device("a").device("b").device("c").workload("online", replicas=3)
    pool.lease("online", "b")
    assert sorted(each.device for each in only(pool.step(), Grant)) == ["a", "c"]


def test_copies_above_the_number_wanted_end_on_worse_devices_first(world):
    pool = world().device("a", health="draining").device("b").workload("online", replicas=1, phase="running")
    first, _ = pool.lease("online", "a"), pool.lease("online", "b")
    (ended,) = pool.step()
    assert (type(ended), ended.lease) == (Release, first)


@pytest.mark.parametrize("phase", ["succeeded", "failed", "cancelled", "parked"])
def test_work_that_is_over_gives_its_lease_back(world, phase):
    pool = world().device("a").running("train", "a", "finetune", 900)
    pool.set_phase("train", phase)
    pool.workload("online", milli=500)
    assert kinds(pool.step()) == ["Release", "Grant"]
    assert pool.settle() == 0


# Preemption


def test_guaranteed_work_preempts_best_effort_that_fits_nowhere_else(world):
    pool = world().device("a").running("train", "a", "finetune", 800).workload("online", milli=500)
    preempted, granted = pool.step()
    assert isinstance(preempted, Preempt) and "makes room for guaranteed online" in preempted.reason
    assert isinstance(granted, Grant) and "train gave way" in granted.reason
    assert pool.settle() == 0


def test_a_victim_moves_rather_than_stops_where_it_fits_elsewhere(world):
    pool = world().device("a").device("b", kind="gpu").running("train", "a", "finetune", 800, tier=("cpu", "gpu"))
    pool.workload("online", milli=500)
    assert kinds(pool.step()) == ["Migrate", "Grant"]
    assert (pool.on("a"), pool.on("b")) == (["online"], ["train"])


def test_a_free_device_is_taken_before_anybody_is_disturbed(world):
    pool = world().device("a").device("b").running("train", "a", "finetune", 800).workload("online", milli=500)
    assert [(type(each), each.device) for each in pool.step()] == [(Grant, "b")]


def test_best_effort_gives_way_before_burstable_and_guaranteed_never(world):
    pool = world().device("a").device("b").running("other", "a", milli=700).running("warm", "a", "warmup", 300)
    pool.running("train", "b", "finetune", 600).running("warmer", "b", "warmup", 400)
    pool.workload("online", milli=500)
    preempted, granted = pool.step()
    assert (preempted.workload, granted.device) == ("train", "b")
    pool.workload("more", milli=500)
    assert [each.workload for each in only(pool.step(), Preempt)] == ["warmer"]
    pool.workload("most", milli=1000)
    assert pool.step() == ()


def test_burstable_work_preempts_best_effort_only(world):
    pool = world().device("a").running("online", "a", milli=400).running("train", "a", "finetune", 600)
    pool.workload("warm", "evaluate", 600)
    assert [each.workload for each in pool.step()] == ["train", "warm"]
    pool.workload("train2", "finetune", 600)
    assert pool.step() == ()


def test_a_victim_that_moved_and_must_go_again_in_one_tick_is_preempted_where_it_was(world):
    pool = world().device("a").device("b", kind="gpu").running("train", "a", "finetune", 800, tier=("cpu", "gpu"))
    pool.workload("one", milli=500, age_s=2).workload("two", milli=800, tier=("gpu",), age_s=1)
    preempted, first, second = pool.step()
    assert (type(preempted), preempted.device) == (Preempt, "a")
    assert (first.device, second.device) == ("a", "b")


def test_preempted_work_resumes_when_there_is_room_but_not_at_once(world):
    pool = world(PoolSettings.model_validate({"movement": {"resume_after_s": 10}}))
    pool.device("a").running("train", "a", "finetune", 800).workload("online", milli=500)
    pool.step()
    pool.set_phase("online", "succeeded")
    assert kinds(pool.step(1)) == ["Release"]
    assert pool.step(8) == () and "preempted 1 times" in pool.state.waiting["train"]
    assert kinds(pool.step(2)) == ["Resume"]


def test_work_that_is_preempted_again_and_again_waits_longer_each_time(world):
    pool = world(PoolSettings.model_validate({"movement": {"resume_after_s": 10, "resume_longest_s": 35}}))
    pool.device("a").running("train", "a", "finetune", 800)
    waits = []
    for turn in range(4):
        pool.workload(f"online{turn}", milli=500)
        pool.step()
        pool.set_phase(f"online{turn}", "succeeded")
        began_s = pool.now_s
        while not only(pool.step(1), Resume):
            pass
        waits.append(pool.now_s - began_s)
    assert waits == [10, 20, 35, 35]


def test_copies_preempted_at_once_count_as_one_preemption(world):
    pool = world().device("a").running("train", ["a", "a"], "finetune", 400).workload("online", milli=1000)
    assert kinds(pool.step()) == ["Preempt", "Preempt", "Grant"]
    assert pool.state.setbacks["train"].count == 1


def test_a_larger_one_of_the_like_waits_with_a_reason_of_its_own(world):
    pool = world().device("a").running("online", "a", milli=900)
    pool.workload("large", "finetune", 300).workload("small", "finetune", 200, age_s=1)
    assert pool.step() == ()
    assert "200 milli" in pool.state.waiting["small"] and "200 milli" in pool.state.waiting["large"]


# Devices that fail


def test_a_warm_copy_takes_over_for_a_dead_device(world):
    pool = world().device("a").device("b").running("online", "a", milli=400)
    shadow = pool.lease("online", "b", shadow=True)
    lost = next(iter(pool.leases))
    pool.set_health("a", "dead")
    promoted, released = pool.step()
    assert isinstance(promoted, PromoteShadow) and (promoted.lease, promoted.lost) == (shadow, lost)
    assert isinstance(released, Release) and released.lease == lost and "device a is dead" in released.reason
    assert pool.settle() == 0


def test_a_warm_copy_without_share_grows_and_best_effort_makes_room(world):
    pool = world().device("a").device("b").running("online", "a", milli=400)
    pool.lease("online", "b", milli=0, shadow=True)
    pool.running("train", "b", "finetune", 900)
    pool.set_health("a", "dead")
    assert kinds(pool.step()) == ["Preempt", "PromoteShadow", "Release", "SetShares"]
    assert pool.leases["1-2"].milli == pool.metrics["1-2"].weight_milli == 400
    assert pool.settle() == 0


@pytest.mark.parametrize("about", [{"ready": False}, {"milli": 0}])
def test_a_copy_that_cannot_take_over_is_passed_by(world, about):
    pool = world().device("a").device("b").device("c").running("online", "a", milli=400)
    pool.running("other", "b", milli=600)
    pool.lease("online", "b", shadow=True, **about)
    if "milli" in about:
        pool.lease("other", "b", milli=400)
        pool.workload("other", replicas=2, milli=600, phase="running")
    pool.set_health("a", "dead")
    released, granted = pool.step()
    assert isinstance(released, Release) and isinstance(granted, Grant)
    assert granted.device == "c"


def test_guaranteed_work_of_a_dead_device_starts_elsewhere_before_best_effort_resumes(world):
    pool = world().device("a").device("b").running("train", "a", "finetune", 400).running("online", "a", milli=600)
    pool.running("other", "b", "finetune", 600)
    pool.set_health("a", "dead")
    decisions = pool.step()
    assert kinds(decisions) == ["Release", "Requeue", "Preempt", "Grant", "Resume"]
    assert decisions[3].workload == "online" and decisions[4].workload == "train"
    assert pool.settle() == 0


def test_a_device_that_vanished_from_the_inventory_is_dead(world):
    pool = world().device("a").device("b").running("online", "a")
    del pool.devices["a"]
    released, granted = pool.step()
    assert "device a is unknown" in released.reason and granted.device == "b"


def test_a_dead_pool_leaves_work_waiting(world):
    pool = world().device("a").running("train", "a", "finetune")
    pool.set_health("a", "dead")
    assert kinds(pool.step()) == ["Requeue"]
    assert pool.settle() == 0
    pool.device("b")
    assert kinds(pool.step()) == ["Grant"]


def test_a_suspected_device_keeps_what_it_has_and_gets_nothing_new(world):
    pool = world().device("a", health="suspect").running("online", "a").workload("train", "finetune")
    assert pool.step() == ()
    assert "1 closed" in pool.state.waiting["train"]


def test_a_draining_device_is_emptied(world):
    pool = world().device("a").device("b").running("online", "a", milli=600).running("train", "a", "finetune", 400)
    pool.running("other", "b", "finetune", 500)
    pool.set_health("a", "draining")
    decisions = pool.step()
    assert kinds(decisions) == ["Preempt", "Migrate", "Migrate"]
    assert pool.on("b") == ["online", "train"] and pool.on("a") == []
    assert pool.phase("other") == "preempted"
    assert pool.settle() == 0


def test_guaranteed_work_stays_on_a_draining_device_until_there_is_room(world):
    pool = world().device("a", health="draining").running("online", "a").running("train", "a", "finetune")
    decisions = pool.step()
    assert kinds(decisions) == ["Preempt"] and decisions[0].workload == "train"
    assert "no device" in pool.state.waiting["online"]
    pool.device("b")
    assert kinds(pool.step()) == ["Migrate"]


# Crash loops


def test_work_that_crashes_waits_and_is_then_parked(world):
    pool = world(PoolSettings.model_validate({"breaker": {"crashes": 3, "first_wait_s": 5, "window_s": 100}}))
    pool.device("a").workload("train", "finetune", crashes_s=(pool.now_s,))
    assert pool.step(4) == () and "it crashed 1 times" in pool.state.waiting["train"]
    assert kinds(pool.step(1)) == ["Grant"]
    pool.leases.clear()
    pool.workload("train", "finetune", crashes_s=(pool.now_s - 5, pool.now_s - 1, pool.now_s))
    (parked,) = pool.step()
    assert isinstance(parked, Park) and "3 times within 100 s" in parked.reason
    assert pool.settle() == 0


def test_a_crash_loop_while_starting_gives_its_lease_back(world):
    pool = world().device("a").workload("train", "finetune", phase="starting", crashes_s=(999,) * 200)
    pool.lease("train", "a")
    assert kinds(pool.step()) == ["Release", "Park"]


def test_copies_that_run_go_on_while_another_crashes(world):
    pool = world().device("a").device("b").workload("online", replicas=2, phase="running", crashes_s=(999,) * 9)
    pool.lease("online", "a")
    assert pool.step() == ()
    assert "a person must look" in pool.state.waiting["online"]


# Shares and relief


def test_shares_follow_the_slo(world):
    pool = world().device("a").running("online", "a", desired_milli=700, slo_ms=10)
    pool.running("train", "a", "finetune", 100, desired_milli=900)
    pool.set_metrics("train", wants=True)
    pool.set_metrics("online", p99_ms=6.5)
    (shared,) = pool.step()
    assert shared == SetShares("a", (("1-1", 300), ("1-2", 700)), "train 100 to 700: wants more")
    pool.set_metrics("online", p99_ms=12)
    (shared,) = pool.step(1)
    assert dict(shared.weights) == {"1-1": 400, "1-2": 600}
    assert "online 300 to 400: p99 at 120% of its SLO" in shared.reason


def test_guaranteed_work_that_names_no_desire_grows_as_far_as_its_slo_asks_for(world):
    pool = world().device("a").running("online", "a", milli=300, slo_ms=10).running("train", "a", "finetune", 100)
    pool.set_metrics("train", wants=True)
    pool.set_metrics("online", p99_ms=12)
    for _ in range(10):
        pool.step(1)
    assert {name: each.weight_milli for name, each in pool.metrics.items()} == {"1-1": 900, "1-2": 100}


def test_a_share_lent_out_comes_back_when_work_is_placed_there(world):
    pool = world().device("a").running("train", "a", "finetune", 100, desired_milli=1000)
    pool.set_metrics("train", wants=True)
    pool.step()
    pool.workload("online", milli=600)
    granted, shared = pool.step()
    assert isinstance(granted, Grant)
    assert shared.weights == (("1-1", 400),)


def overloaded(world):
    settings = PoolSettings.model_validate({"movement": {"relieve_after_s": 3, "move_dwell_s": 30}})
    pool = world(settings).device("a")
    for name, milli in (("one", 300), ("two", 400)):  # neither can use more than its lease
        pool.running(name, "a", milli=milli, desired_milli=milli, slo_ms=10)
    pool.set_metrics("one", p99_ms=30)
    pool.set_metrics("two", p99_ms=30)
    return pool


def test_best_effort_leaves_a_device_short_of_share_before_guaranteed_work_is_touched(world):
    pool = overloaded(world).device("b").running("train", "a", "finetune", 200)
    assert pool.step() == () and pool.step(2) == ()
    (moved,) = pool.step(1)
    assert (moved.workload, moved.device) == ("train", "b")
    assert pool.step(2) == ()
    (moved,) = pool.step(1)
    assert (moved.workload, moved.device) == ("one", "b") and "misses its SLO on a" in moved.reason


def test_no_lower_work_is_put_on_a_device_short_of_share(world):
    pool = overloaded(world)
    pool.step()
    pool.workload("train", "finetune", 100)
    assert pool.step(1) == ()
    pool.set_metrics("one", p99_ms=1)
    pool.set_metrics("two", p99_ms=1)
    pool.step(1)
    assert kinds(pool.step(1)) == ["Grant"]


def test_load_moves_to_a_neighbour_once_and_not_back(world):
    pool = overloaded(world).device("b")
    moves = [only(pool.step(1), Migrate) for _ in range(200)]
    assert sum(map(len, moves)) == 1
    assert (pool.on("a"), pool.on("b")) == (["two"], ["one"])


def test_what_load_has_just_moved_is_not_moved_again_at_once(world):
    settings = PoolSettings.model_validate({"movement": {"relieve_after_s": 3, "move_dwell_s": 300}})
    pool = world(settings).device("a").device("b").device("c", health="suspect")
    for name, device, milli in (("one", "a", 200), ("two", "a", 400), ("three", "b", 250)):
        pool.running(name, device, milli=milli, desired_milli=milli, slo_ms=10)
    for name in ("one", "two"):
        pool.set_metrics(name, p99_ms=30)
    first = [each for _ in range(5) for each in pool.step(1)]
    pool.set_metrics("two", p99_ms=8)
    pool.set_metrics("three", p99_ms=30)
    pool.set_health("c", "alive")
    second = [each for _ in range(5) for each in pool.step(1)]
    assert [(each.workload, each.source, each.device) for each in (*first, *second)] == [
        ("one", "a", "b"),
        ("three", "b", "c"),
    ]


def test_work_too_slow_for_its_slo_by_itself_is_not_moved_about(world):
    pool = world().device("a").device("b").running("online", "a", desired_milli=300, slo_ms=10)
    pool.set_metrics("online", p99_ms=99)
    assert [pool.step(10) for _ in range(10)] == [()] * 10


def test_an_slo_missed_for_a_moment_moves_nothing(world):
    pool = overloaded(world).device("b").running("train", "a", "finetune", 200)
    for _ in range(10):
        for p99_ms in (30, 8, 30):
            pool.set_metrics("one", p99_ms=p99_ms)
            pool.set_metrics("two", p99_ms=p99_ms)
            assert pool.step(1) == ()


# What is remembered


def test_nothing_is_remembered_of_what_is_gone(world):
    pool = overloaded(world).running("train", "a", "finetune", 300).workload("more", milli=300)
    pool.step()
    pool.step(1)
    assert pool.state.setbacks and pool.state.shares and pool.state.short_since_s
    pool.devices.clear()
    pool.workloads.clear()
    pool.leases.clear()
    pool.step(1)
    assert pool.state == PlannerState()


def test_a_new_controller_needs_no_memory(world):
    pool = world().device("a").device("b").running("online", ["a", "b"]).running("train", "a", "finetune")
    pool.settle()
    pool.state = PlannerState()
    assert pool.decide() == ()


def test_requeued_work_is_not_held_back_like_preempted_work(world):
    pool = world().device("a").device("b").running("train", "a", "finetune")
    pool.set_health("a", "dead")
    assert [type(each) for each in pool.step()] == [Requeue, Resume]
