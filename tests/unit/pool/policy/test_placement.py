from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.pool_settings import PlacementSettings
from pool.device import Device, Topology
from pool.policy.cost_model import Prediction
from pool.policy.latency import GraphCosts
from pool.policy.placement import place, place_all
from pool.policy.rooms import DeviceRoom
from pool.policy.strategies import STRATEGIES
from pool.workload import WorkloadSpec

GIB = 1 << 30


def spec(name="w", **about) -> WorkloadSpec:
    return WorkloadSpec(**{"name": name, "kind": "inference", "model": "m", "min_milli": 300, **about})


def room(name, kind="cpu", free=1000, memory=GIB, free_bytes=None, node=None, rack="", zone="", price=0.0, **about):
    device = Device(name, kind, memory, Topology(node or name, rack, zone), price_per_hour=price)
    return DeviceRoom(device, free, memory if free_bytes is None else free_bytes, **about)


def settings(**about) -> PlacementSettings:
    return PlacementSettings.model_validate({"strategy": "tier_order", **about})


def chosen(asked, rooms, predictions=None, about=None, costs=None, **more):
    return place(asked, rooms, predictions or {}, about or settings(), costs, **more).device_id


def can_take(each, asked) -> bool:
    """Whether a room can take one lease of a workload."""
    enough = each.free_milli >= asked.min_milli and each.free_bytes >= asked.memory_bytes
    return enough and each.open and each.device.kind in asked.tier


def graph(parameters=1, attention=False) -> GraphCosts:
    return GraphCosts(1, parameters, 1, 1, attention)


# Who is left out


@pytest.mark.parametrize(
    ("bad", "reason"),
    [
        (room("a", kind="gpu"), "1 of another kind"),
        (room("a", open=False), "1 closed"),
        (room("a", free=299), "1 without the share; most free share 299"),
        (room("a", free_bytes=9), "1 without the memory"),
    ],
)
def test_a_device_that_cannot_take_it_is_left_out_and_the_reason_says_why(bad, reason):
    asked = spec(memory_bytes=10)
    found = place(asked, [bad], {}, settings())
    assert found.device_id is None and found.scores == ()
    assert reason in found.reason
    assert chosen(asked, [bad, room("b")]) == "b"


def test_an_empty_pool_is_no_error():
    assert "there is none" in place(spec(), [], {}, settings()).reason


def test_a_device_to_avoid_is_never_chosen():
    assert chosen(spec(), [room("a"), room("b", free=300)], avoid={"b"}) == "a"
    assert chosen(spec(), [room("a")], avoid={"a"}) is None


# Who is best


def test_the_first_tier_wins_and_the_next_is_the_fallback():
    asked = spec(tier=("npu", "gpu", "cpu"))
    rooms = [room("c"), room("g", kind="gpu"), room("n", kind="npu", free=0)]
    assert chosen(asked, rooms) == "g"


def test_keeping_the_slo_goes_before_everything_else():
    asked = spec(tier=("npu", "cpu"), slo_ms=10)
    predictions = {"npu": Prediction(9, 900, "profile"), "cpu": Prediction(5, 500, "profile")}
    rooms = [room("n", kind="npu", free=800, price=0), room("c", free=600, price=9, tenants=("w",))]
    assert chosen(asked, rooms, predictions) == "c"
    late = place(asked, rooms[:1], predictions, settings())
    assert late.device_id == "n" and "miss its SLO" in late.reason


def test_copies_keep_as_far_apart_as_they_can():
    holder = room("a", node="n1", rack="r1", zone="z1", free=700, tenants=("w",))
    same_node = room("b", node="n1", rack="r1", zone="z1", free=300)
    same_rack = room("c", node="n2", rack="r1", zone="z1", free=300)
    same_zone = room("d", node="n3", rack="r2", zone="z1", free=300)
    apart = room("e", node="n4", rack="r1", zone="z2", free=1000)
    ladder = [holder, same_node, same_rack, same_zone, apart]
    for best in range(len(ladder), 0, -1):
        assert chosen(spec(), ladder[:best]) == ladder[best - 1].device.id


def test_unnamed_racks_and_zones_bring_nobody_near():
    rooms = [room("a", tenants=("w",)), room("b", free=400), room("c", free=300)]
    assert place(spec(), rooms, {}, settings()).scores[0].nearness == 0


def test_best_fit_leaves_the_largest_hole():
    assert chosen(spec(), [room("a"), room("b", free=500), room("c", free=400)]) == "c"


def test_a_hole_too_small_for_anybody_is_worse_than_a_larger_one():
    assert chosen(spec(), [room("a", free=350), room("b", free=400)]) == "b"
    assert chosen(spec(), [room("a", free=300), room("b", free=400)]) == "a"


def test_share_left_without_memory_is_waste():
    asked = spec(memory_bytes=GIB // 2)
    assert chosen(asked, [room("a", free=600, free_bytes=GIB // 2), room("b", free=1000)]) == "b"


def test_of_equal_holes_the_cheaper_device_then_the_first_id():
    assert chosen(spec(), [room("a", price=2), room("b", price=1)]) == "b"
    assert chosen(spec(), [room("b"), room("a")]) == "a"


def test_the_decision_shows_the_best_scores_in_order():
    rooms = [room(name, free=500 + 100 * place) for place, name in enumerate("abcde")]
    scores = place(spec(), rooms, {}, settings())
    assert [score.device_id for score in scores.scores] == ["a", "b", "c"]


# Strategies


def test_the_setting_names_every_strategy_and_no_other():
    assert set(get_args(PlacementSettings.model_fields["strategy"].annotation)) == set(STRATEGIES)


@pytest.mark.parametrize(
    ("parameters", "attention", "rows", "kind"),
    [
        (1_000, False, 1, "npu"),
        (1_000, True, 64, "npu"),
        (1_000, True, 65, "cpu"),
        (1_000_000_000, False, 1, "cpu"),
        (1_000_000_000, True, 511, "cpu"),
        (1_000_000_000, True, 512, "gpu"),
        (1_000, True, 512, "gpu"),
        (1_000_000_000, False, 512, "cpu"),
    ],
)
def test_the_rule_of_thumb(parameters, attention, rows, kind):
    rooms = [room("c"), room("g", kind="gpu"), room("n", kind="npu")]
    asked = spec(tier=("gpu", "cpu", "npu"), attributes={"batch_rows": rows})
    decided = place(asked, rooms, {}, settings(strategy="rule_of_thumb"), graph(parameters, attention))
    assert decided.device_id == kind[0]
    fallback = place(asked, rooms, {}, settings(strategy="measured"), graph(parameters, attention))
    assert fallback.device_id == kind[0]


def test_the_rule_never_leaves_the_tiers_and_falls_back_within_them():
    rooms = [room("c"), room("g", kind="gpu"), room("n", kind="npu")]
    rule = settings(strategy="rule_of_thumb")
    assert chosen(spec(tier=("gpu", "cpu")), rooms, about=rule, costs=graph()) == "g"
    assert chosen(spec(tier=("gpu", "cpu")), rooms, about=rule) == "g"


@pytest.mark.parametrize(
    ("declared", "rows", "kind"),
    [
        ({"parameters": 1_000}, 1, "npu"),
        ({"parameters": 1_000_000_000}, 1, "cpu"),
        ({"transformer": True}, 512, "gpu"),
        ({"transformer": True}, 1, "cpu"),
        ({"parameters": 1_000, "transformer": True}, 512, "gpu"),
        ({}, 1, "gpu"),  # nothing is known of it: the first of its tiers
    ],
)
def test_without_a_graph_the_rule_goes_by_what_is_declared(declared, rows, kind):
    rooms = [room("c"), room("g", kind="gpu"), room("n", kind="npu")]
    asked = spec(tier=("gpu", "cpu", "npu"), attributes={"batch_rows": rows, **declared})
    assert chosen(asked, rooms, about=settings(strategy="measured")) == kind[0]


def test_a_graph_goes_before_what_is_declared():
    rooms = [room("c"), room("n", kind="npu")]
    asked = spec(tier=("cpu", "npu"), attributes={"parameters": 10**12})
    assert chosen(asked, rooms, about=settings(strategy="measured"), costs=graph(1_000, False)) == "n"


def test_measured_takes_the_cheapest_share_that_keeps_the_slo():
    asked = spec(tier=("cpu", "gpu", "npu"), slo_ms=10, min_milli=100)
    predictions = {
        "cpu": Prediction(40, 4000, "profile"),  # free of charge, and too slow
        "gpu": Prediction(1, 100, "profile"),
        "npu": Prediction(2, 200, "roofline"),
    }
    rooms = [room("c"), room("g", kind="gpu", price=30), room("n", kind="npu", price=10)]
    decided = place(asked, rooms, predictions, settings(strategy="measured"))
    assert decided.device_id == "n"  # 200 thousandths of 10 an hour are less than 100 of 30
    assert "npu 200 by roofline, gpu 100 by profile, cpu 4000 by profile" in decided.reason
    rooms[1] = room("g", kind="gpu", price=19)
    assert chosen(asked, rooms, predictions, settings(strategy="measured")) == "g"


def test_what_is_not_measured_comes_after_what_is():
    asked = spec(tier=("cpu", "gpu"))
    rooms = [room("c"), room("g", kind="gpu", price=99)]
    assert chosen(asked, rooms, {"gpu": Prediction(1, 300, "profile")}, settings(strategy="measured")) == "g"


# Several


def test_guaranteed_work_is_placed_first_and_the_answer_keeps_the_order_asked():
    low = spec("low", kind="finetune", min_milli=1000)
    high = spec("high", min_milli=600)
    found = place_all([low, high], [room("a")], {}, settings())
    assert [[each.device_id for each in decisions] for decisions in found] == [[None], ["a"]]


def test_replicas_spread_over_nodes():
    rooms = [room(name, node=node) for name, node in (("a", "1"), ("b", "1"), ("c", "2"), ("d", "2"))]
    (found,) = place_all([spec(replicas=2)], rooms, {}, settings())
    assert {each.device_id[0] in "ab" for each in found} == {True, False}


rooms_drawn = st.lists(
    st.builds(
        lambda kind, free, part, node, price, open_: (kind, free, part, node, price, open_),
        st.sampled_from(["cpu", "gpu", "npu"]),
        st.integers(0, 1000),
        st.integers(0, 10),
        st.integers(0, 3),
        st.integers(0, 2),
        st.booleans(),
    ),
    max_size=8,
).map(
    lambda drawn: [
        room(f"d{n}", kind, free, 100, part * 10, f"n{node}", f"r{node // 2}", "z", price, open=open_)
        for n, (kind, free, part, node, price, open_) in enumerate(drawn)
    ]
)
specs_drawn = st.lists(
    st.builds(
        lambda kind, milli, memory, tier, replicas: (kind, milli, memory, tier, replicas),
        st.sampled_from(["inference", "warmup", "finetune"]),
        st.integers(1, 700),
        st.integers(0, 80),
        st.permutations(["cpu", "gpu", "npu"]).flatmap(lambda tier: st.sampled_from([tier[:1], tier[:2], tier])),
        st.integers(1, 3),
    ),
    max_size=6,
).map(
    lambda drawn: [
        spec(f"w{n}", kind=kind, min_milli=milli, memory_bytes=memory, tier=tuple(tier), replicas=replicas)
        for n, (kind, milli, memory, tier, replicas) in enumerate(drawn)
    ]
)
STRATEGY = st.sampled_from(sorted(STRATEGIES))


@given(specs=specs_drawn, rooms=rooms_drawn, strategy=STRATEGY)
def test_no_device_is_ever_promised_twice(specs, rooms, strategy):
    found = place_all(specs, rooms, {}, settings(strategy=strategy))
    for each in rooms:
        held = [
            asked
            for asked, decisions in zip(specs, found, strict=True)
            for decision in decisions
            if decision.device_id == each.device.id
        ]
        assert not held or each.open
        assert sum(asked.min_milli for asked in held) <= each.free_milli
        assert sum(asked.memory_bytes for asked in held) <= each.free_bytes
        assert all(each.device.kind in asked.tier for asked in held)


@given(specs=specs_drawn, rooms=rooms_drawn, strategy=STRATEGY, shuffled=st.randoms())
def test_the_order_of_devices_does_not_matter(specs, rooms, strategy, shuffled):
    mixed = list(rooms)
    shuffled.shuffle(mixed)
    about = settings(strategy=strategy)
    assert place_all(specs, mixed, {}, about) == place_all(specs, rooms, {}, about)


@given(specs=specs_drawn.filter(bool), rooms=rooms_drawn, strategy=STRATEGY)
def test_a_place_is_found_exactly_when_there_is_one(specs, rooms, strategy):
    found = place(specs[0], rooms, {}, settings(strategy=strategy))
    assert (found.device_id is not None) == any(can_take(each, specs[0]) for each in rooms)


def nearest(device, peers) -> int:
    """How near the nearest copy is: 4 same device, 3 node, 2 rack, 1 zone, 0 apart."""
    here, near = device.topology, 0
    for peer in peers:
        there = peer.topology
        same_zone = here.zone and here.zone == there.zone
        same_rack = here.rack and (here.zone, here.rack) == (there.zone, there.rack)
        steps = [(device.id == peer.id, 4), (here.node == there.node, 3), (same_rack, 2), (same_zone, 1), (True, 0)]
        near = max(near, next(distance for is_it, distance in steps if is_it))
    return near


@given(
    rooms=rooms_drawn.filter(bool),
    asked=specs_drawn.filter(bool),
    shares=st.dictionaries(st.sampled_from(["cpu", "gpu", "npu"]), st.integers(1, 1500)),
    copies=st.lists(st.integers(0, 7), max_size=3),
    avoid=st.sets(st.integers(0, 7), max_size=2),
)
def test_no_device_is_better_by_the_order_that_the_module_states(rooms, asked, shares, copies, avoid):
    asked = asked[0].model_copy(update={"slo_ms": 10.0})
    peers = [rooms[n].device for n in copies if n < len(rooms)]
    avoided = {f"d{n}" for n in avoid}
    predictions = {kind: Prediction(1.0, share, "profile") for kind, share in shares.items()}

    def rank(each):
        left, left_bytes = each.free_milli - asked.min_milli, each.free_bytes - asked.memory_bytes
        wasted = left if left < 100 or left_bytes < 0.1 * each.device.memory_bytes else 0
        misses = shares.get(each.device.kind, 0) > each.free_milli
        near, kind = nearest(each.device, peers), asked.tier.index(each.device.kind)
        price = each.device.price_per_hour * asked.min_milli / 1000
        return misses, near, kind, wasted, left, left_bytes / each.device.memory_bytes, price, each.device.id

    able = [each for each in rooms if can_take(each, asked) and each.device.id not in avoided]
    found = place(asked, rooms, predictions, settings(), peers=peers, avoid=avoided)
    ranked = [each.device.id for each in sorted(able, key=rank)]
    assert [score.device_id for score in found.scores] == ranked[:3]
    assert found.device_id == (ranked[0] if ranked else None)
