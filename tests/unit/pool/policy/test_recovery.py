"""Warm copies take over for copies that are gone, and the load spreads again afterwards."""

from __future__ import annotations

from dataclasses import replace

from pool.policy.decisions import PromoteShadow, SetShares, StandBy
from pool.policy.recovery import SETTLED_S


def served(world, serving, shadows, replicas=2, milli=200):
    """A workload that Serve runs, with copies on these devices."""
    pool = world()
    for device in sorted({*serving, *shadows}):
        pool.device(device)
    pool.running("online", serving, milli=milli)
    pool.workload("online", replicas=min(replicas, len(serving) + len(shadows)), milli=milli, phase="running")
    pool.workloads["online"] = replace(pool.workloads["online"], served=True)
    for device in shadows:
        pool.lease("online", device, milli=0, shadow=True)
    return pool


def moves(decisions) -> list[tuple[str, str]]:
    return [(type(each).__name__, each.device) for each in decisions if not isinstance(each, SetShares)]


def test_a_warm_copy_takes_over_for_a_copy_whose_lease_is_gone_already(world):
    pool = served(world, ["a"], ["b"])
    [promoted] = [each for each in pool.decide() if isinstance(each, PromoteShadow)]
    assert (promoted.device, promoted.milli, promoted.lost) == ("b", 200, "")
    assert "a copy of online is gone" in promoted.reason


def test_as_many_as_are_missing_take_over_and_no_more(world):
    pool = served(world, ["a"], ["b", "c", "d"], replicas=3)
    assert moves(pool.decide()) == [("PromoteShadow", "b"), ("PromoteShadow", "c")]


def test_of_several_the_one_with_the_fewest_copies_beside_it_takes_over(world):
    pool = served(world, ["a"], ["a", "b"])
    assert moves(pool.decide()) == [("PromoteShadow", "b")]


def test_what_serves_anyway_takes_what_there_is_where_guaranteed_work_leaves_no_room(world):
    pool = served(world, ["a"], ["b"]).running("other", "b", milli=900)
    [promoted] = [each for each in pool.decide() if isinstance(each, PromoteShadow)]
    assert promoted.milli == 100


def test_a_suspected_device_is_no_reason_to_leave_a_replica_idle(world):
    pool = served(world, ["a"], ["b"])
    pool.set_health("b", "suspect")
    assert moves(pool.decide()) == [("PromoteShadow", "b")]


def test_a_device_that_serves_twice_exchanges_roles_with_one_that_serves_not_at_all(world):
    pool = served(world, ["a", "a"], ["b"])
    pool.now_s += SETTLED_S
    decisions = [each for each in pool.decide() if not isinstance(each, SetShares)]
    assert moves(decisions) == [("PromoteShadow", "b"), ("StandBy", "a")]
    assert isinstance(decisions[1], StandBy) and "a serves 2 copies of online, b 0" in decisions[1].reason


def test_roles_are_not_exchanged_before_those_who_route_calls_know_the_copy(world):
    pool = served(world, ["a", "a"], ["b"])
    late = {lease: replace(view, since_s=pool.now_s) for lease, view in pool.leases.items() if view.shadow}
    pool.leases |= late
    pool.now_s += SETTLED_S / 2
    assert moves(pool.decide()) == []


def test_where_the_load_is_even_roles_stay(world):
    pool = served(world, ["a", "b"], ["a"])
    pool.now_s += 10 * SETTLED_S
    assert moves(pool.decide()) == []
