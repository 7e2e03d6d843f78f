"""Replicas beyond those that are to serve stand by; they take over within a tick of a death, and roles outlive all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pool.gate.readings import GateReading, SlotView
from pool.runtime.messages import Claim, Claimed

CLAIM = Claim("a", "gateway", "n1", "cpu", core_milli=250, memory_bytes=1 << 20, copies=2, replica="ra", pid=101)
REPLICAS = {name: replace(CLAIM, holder=name, replica=f"r{name}", pid=100 + n) for n, name in enumerate("abcd", 1)}


class Replicas:
    """Serving replicas of one controller: they claim, renew, compute at the gate of their device, and die."""

    def __init__(self, run):
        self.run, self.held, self.dead = run, {}, set()

    def start(self, name: str) -> Claimed:
        self.held[name] = self.run.controller.claim(REPLICAS[name])
        self._join()
        return self.held[name]

    def renew(self) -> None:
        for name, held in self.held.items():
            if name not in self.dead:
                said = replace(REPLICAS[name], lease=held.lease, shadow=held.shadow)
                self.held[name] = self.run.controller.claim(said)

    def die(self, name: str) -> None:
        self.dead.add(name)
        self._join()

    def roles(self) -> dict[str, bool]:
        """Whether it stands by, of each that the book has."""
        slices = {each.lease: each for d in self.run.controller.report().devices for each in d.slices}
        return {n: slices[h.lease.id].shadow for n, h in self.held.items() if h.lease.id in slices}

    def milli(self, name: str) -> int:
        slices = {each.lease: each for d in self.run.controller.report().devices for each in d.slices}
        return slices[self.held[name].lease.id].leased_milli

    def devices(self) -> dict[str, str]:
        return {name: held.device.id for name, held in self.held.items()}

    def _join(self) -> None:
        """The agents see who is a member of which gate."""
        readings = []
        for device in self.run.ground.opened["n1"]:
            here = [n for n, h in self.held.items() if h.device.id == device and n not in self.dead]
            slots = tuple(slot(n, REPLICAS[name].pid) for n, name in enumerate(here))
            readings.append(GateReading(device, 1, 1, slots))
        self.run.ground.readings["n1"] = tuple(readings)


def slot(number: int, pid: int) -> SlotView:
    return SlotView(number, 1, "gateway", pid, 1, "guaranteed", 0, "run", 0, False, False, 0, 0, 0)


@pytest.fixture
def replicas(run) -> Replicas:
    replicas = Replicas(run)
    for name in "abc":
        replicas.start(name)
    run.tick()
    return replicas


def test_the_copies_wanted_serve_and_the_next_stands_by_with_memory_alone(replicas):
    assert replicas.roles() == {"a": False, "b": False, "c": True}
    assert [replicas.held[name].shadow for name in "abc"] == [False, False, True]
    shadow = replicas.held["c"].lease
    assert (shadow.milli, shadow.memory_bytes) == (0, 1 << 20)
    assert [replicas.milli(name) for name in "abc"] == [250, 250, 0]


def test_a_shadow_stands_away_from_those_that_serve_where_it_can(run):
    for name in "ab":
        run.controller.claim(replace(REPLICAS[name], copies=1))
    by_device = {d.id: [s.shadow for s in d.slices] for d in run.controller.report().devices}
    assert sorted(by_device.values()) == [[False], [True]]


def test_without_shadows_wanted_all_serve(run):
    for name in "abc":
        assert not run.controller.claim(replace(REPLICAS[name], copies=0)).shadow


def test_a_death_promotes_the_shadow_within_a_tick_and_the_replacement_is_the_next(run, replicas):
    replicas.die("a")
    run.tick()
    assert replicas.roles() == {"b": False, "c": False}
    assert replicas.milli("c") == 250
    said = [each for each in run.controller.report().decisions if each.what.startswith("promote gateway")]
    assert "a copy of gateway is gone" in said[0].reason
    assert replicas.start("d").shadow
    run.tick()
    assert replicas.roles() == {"b": False, "c": False, "d": True}


def test_a_replica_that_never_joined_a_gate_is_not_taken_for_dead(run):
    run.controller.claim(REPLICAS["a"])
    run.tick(4)
    assert len(run.book()) == 1


def test_the_load_spreads_again_once_the_replacement_has_settled(run, replicas):
    crowded = replicas.devices()["c"]
    victim = next(name for name in "ab" if replicas.devices()[name] != crowded)
    replicas.die(victim)
    run.tick()
    assert replicas.start("d").device.id != crowded
    run.tick(4)
    assert replicas.roles()["d"]
    replicas.renew()
    run.tick(30)
    roles = replicas.roles()
    serving = [replicas.devices()[name] for name, shadow in roles.items() if not shadow]
    assert sorted(serving) == ["gpu-0", "gpu-1"] and sum(roles.values()) == 1
    before = roles
    replicas.renew()
    run.tick(30)
    assert replicas.roles() == before, "it rests then"


def test_what_is_full_is_left_to_the_planner_and_the_shadow_serves_on_what_there_is(run, replicas):
    device = replicas.devices()["c"]
    other = next(name for name in "ab" if replicas.devices()[name] != device)
    run.started("night", min_milli=750, tier=("gpu",))
    run.started("day", min_milli=750, tier=("gpu",))
    replicas.die(other)
    run.tick()
    assert replicas.roles()["c"] is False
    assert run.ground.told, "best-effort work makes room"


def test_roles_outlive_a_controller_and_even_its_journal(make, replicas, tmp_path):
    second = make()
    replicas.run = second
    assert replicas.roles() == {"a": False, "b": False, "c": True}
    (tmp_path / "pool" / "journal.json").unlink()
    replicas.run = make()
    replicas.renew()
    assert replicas.roles() == {"a": False, "b": False, "c": True}


def test_whoever_routes_calls_is_told_every_role(make):
    told = []
    run = make(announce=told.append)
    replicas = Replicas(run)
    for name in "abc":
        replicas.start(name)
    assert told[-1] == {"ra": False, "rb": False, "rc": True}
    run.tick()
    replicas.die("b")
    run.tick()
    assert told[-1] == {"ra": False, "rc": False}


def test_the_report_counts_what_serves(run, replicas):
    report = run.controller.workload("gateway")
    assert report.spec["replicas"] == 2 and report.spec["min_milli"] == 250


def test_two_copies_on_one_device_are_metered_apart(run, replicas):
    device = replicas.devices()["c"]
    serving = next(name for name in "ab" if replicas.devices()[name] == device)
    pids = {name: REPLICAS[name].pid for name in (serving, "c")}

    def reading(at_ns: int, used_ns: int) -> tuple[GateReading, ...]:
        worked = replace(slot(0, pids[serving]), metered_ns=used_ns, weight_milli=125)
        return (GateReading(device, at_ns, 1, (worked, replace(slot(1, pids["c"]), weight_milli=125))),)

    run.ground.readings["n1"] = reading(1, 0)
    run.tick()
    run.ground.readings["n1"] = reading(1_000_000_001, 400_000_000)
    run.tick()
    slices = {each.lease: each for d in run.controller.report().devices for each in d.slices}
    mine, shadow = slices[replicas.held[serving].lease.id], slices[replicas.held["c"].lease.id]
    assert (mine.metered_milli, shadow.metered_milli) == (400, 0)
    assert (mine.share_milli, shadow.share_milli) == (250, 0)
