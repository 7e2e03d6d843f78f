"""Victims against a search over every choice of leases on every device."""

from __future__ import annotations

from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pool.device import Device, Topology
from pool.policy.rooms import DeviceRoom
from pool.policy.victims import Clearings, MadeRoom, Tenant, choose_victims
from pool.workload import WorkloadSpec


def tenant(name, rank="best_effort", milli=100, memory=0) -> Tenant:
    return Tenant(name, name, rank, milli, memory)


def spec(milli, memory=0, kind="inference", tier=("cpu",)) -> WorkloadSpec:
    return WorkloadSpec(name="w", kind=kind, model="m", min_milli=milli, memory_bytes=memory, tier=tier)


def room(name, free=0, free_bytes=0, kind="cpu", open=True) -> DeviceRoom:
    return DeviceRoom(Device(name, kind, 1000, Topology(name)), free, free_bytes, open=open)


def cheapest_room(asked, rooms, tenants, **about) -> MadeRoom | None:
    return Clearings({each.device.id: each for each in rooms}, tenants).cheapest(asked, **about)


def names(found) -> list[str] | None:
    return None if found is None else sorted(each.lease for each in found)


def cost(choice):
    firm = sum(each.rank == "burstable" for each in choice)
    return firm, len(choice) - firm, sum(each.milli for each in choice)


def cheapest(tenants, milli, memory):
    """Cost of the best choice there is, by trying them all; None without one."""
    every = chain.from_iterable(combinations(tenants, size) for size in range(len(tenants) + 1))
    enough = [
        cost(choice)
        for choice in every
        if sum(each.milli for each in choice) >= milli and sum(each.memory_bytes for each in choice) >= memory
    ]
    return min(enough, default=None)


def test_best_effort_gives_way_before_burstable_however_many_it_takes():
    tenants = [tenant("b", "burstable", 500), *(tenant(f"f{n}", milli=100) for n in range(5))]
    assert names(choose_victims(tenants, 450, 0)) == ["f0", "f1", "f2", "f3", "f4"]


def test_few_and_small_ones_are_taken():
    tenants = [tenant("a", milli=100), tenant("b", milli=250), tenant("c", milli=300), tenant("d", milli=900)]
    assert names(choose_victims(tenants, 200, 0)) == ["b"]
    assert names(choose_victims(tenants, 90, 0)) == ["a"]


def test_memory_alone_can_ask_for_a_victim():
    tenants = [tenant("a", milli=10, memory=500), tenant("b", milli=5, memory=100)]
    assert names(choose_victims(tenants, -100, 300)) == ["a"]


def test_when_all_is_not_enough_nobody_is_taken():
    assert choose_victims([tenant("a"), tenant("b", "burstable")], 201, 0) is None


def test_work_of_its_own_rank_or_above_never_gives_way():
    tenants = {"d": [tenant("g", "guaranteed", 900), tenant("b", "burstable", 50)]}
    assert cheapest_room(spec(100), [room("d", free=50)], tenants).victims == (tenants["d"][1],)
    assert cheapest_room(spec(200), [room("d", free=50)], tenants) is None
    assert cheapest_room(spec(100, kind="warmup"), [room("d", free=50)], tenants) is None
    assert cheapest_room(spec(100, kind="finetune"), [room("d", free=50)], tenants) is None


def test_a_device_where_best_effort_suffices_is_taken_before_one_that_costs_burstable_work():
    tenants = {"a": [tenant("b", "burstable", 500)], "z": [tenant(f"f{n}", milli=100) for n in range(5)]}
    found = cheapest_room(spec(500), [room("a"), room("z")], tenants)
    assert (found.device_id, len(found.victims)) == ("z", 5)


def test_of_as_many_victims_those_beside_no_copy_are_taken():
    tenants = {"a": [tenant("f", milli=100)], "b": [tenant("g", milli=200)], "c": [tenant("x", milli=50)]}
    tenants["c"] += [tenant("y", milli=50)]
    rooms = [room(name) for name in "abc"]
    assert cheapest_room(spec(100), rooms, tenants).device_id == "a"
    assert cheapest_room(spec(100), rooms, tenants, copies_on={"a"}).device_id == "b"
    assert cheapest_room(spec(100), rooms, tenants, copies_on={"a", "b"}).device_id == "a"
    pairs = {name: [tenant(f"{name}{n}", milli=60) for n in range(2)] for name in "ab"}
    assert cheapest_room(spec(100), rooms[:2], pairs, copies_on={"a"}).device_id == "b"


@pytest.mark.parametrize("bad", [room("a", open=False), room("a", kind="gpu")])
def test_a_closed_device_or_one_of_another_kind_is_not_cleared(bad):
    assert cheapest_room(spec(100), [bad], {"a": [tenant("f")]}) is None


tenants_drawn = st.lists(
    st.tuples(st.sampled_from(["burstable", "best_effort"]), st.integers(1, 400), st.integers(0, 400)), max_size=7
).map(lambda drawn: [tenant(f"t{n}", rank, milli, memory) for n, (rank, milli, memory) in enumerate(drawn)])


@given(tenants=tenants_drawn, milli=st.integers(-100, 900), memory=st.integers(-100, 900))
def test_no_choice_is_cheaper(tenants, milli, memory):
    found = choose_victims(tenants, milli, memory)
    gentle = [each for each in tenants if each.rank == "best_effort"]
    best = cheapest(gentle, milli, memory) or cheapest(tenants, milli, memory)
    assert (None if found is None else cost(found)) == best


@given(pool=st.lists(tenants_drawn, min_size=1, max_size=4), milli=st.integers(1, 900), memory=st.integers(0, 900))
def test_no_device_is_cheaper(pool, milli, memory):
    rooms = [room(f"d{n}", free=10 * n, free_bytes=5 * n) for n in range(len(pool))]
    held = {each.device.id: tenants for each, tenants in zip(rooms, pool, strict=True)}
    found = cheapest_room(spec(milli, memory), rooms, held)
    best = [cheapest(held[each.device.id], milli - each.free_milli, memory - each.free_bytes) for each in rooms]
    best = min((one for one in best if one is not None), default=None)
    assert (None if found is None else cost(found.victims)) == best


@given(
    sizes=st.lists(st.tuples(st.booleans(), st.integers(1, 50), st.integers(0, 50)), min_size=13, max_size=40),
    milli=st.integers(1, 1000),
    memory=st.integers(0, 1000),
)
def test_of_many_tenants_enough_give_way_and_none_in_vain(sizes, milli, memory):
    tenants = [
        tenant(f"t{n}", "burstable" if firm else "best_effort", share, held)
        for n, (firm, share, held) in enumerate(sizes)
    ]
    found = choose_victims(tenants, milli, memory)

    def enough(some) -> bool:
        return sum(t.milli for t in some) >= milli and sum(t.memory_bytes for t in some) >= memory

    assert (found is not None) == enough(tenants)
    if found is not None:
        assert enough(found)
        assert not any(enough([t for t in found if t is not one]) for one in found)
        if enough([t for t in tenants if t.rank == "best_effort"]):
            assert all(t.rank == "best_effort" for t in found)


@given(
    pool=st.lists(tenants_drawn, min_size=1, max_size=4),
    sizes=st.lists(st.tuples(st.sampled_from([50, 300, 600]), st.sampled_from([0, 200])), min_size=1, max_size=8),
    gone=st.data(),
)
def test_what_is_remembered_of_a_device_is_forgotten_when_it_changes(pool, sizes, gone):
    rooms = {f"d{n}": room(f"d{n}", free=10 * n, free_bytes=5 * n) for n in range(len(pool))}
    held = dict(zip(rooms, pool, strict=True))
    clearings = Clearings(rooms, held)
    for milli, memory in sizes:
        asked = spec(milli, memory)
        assert clearings.cheapest(asked) == cheapest_room(asked, rooms.values(), held)
        name = gone.draw(st.sampled_from(sorted(rooms)))
        assert clearings.cheapest(asked, avoid={name}) == cheapest_room(asked, rooms.values(), held, avoid={name})
        if held[name]:
            held[name], rooms[name] = held[name][1:], room(name, free=held[name][0].milli)
            clearings.change(name)
