"""Whole runs of small pools: the same seed the same result, both ways alike, and nobody lost with a rack."""

from __future__ import annotations

import pytest

from pool.policy.autoscale.signals import Target
from pool.simulator.simulation import Simulation, mode_of

TUNE = {"name": "tune", "copies": 3, "min_milli": 300, "unit_ms": 5, "checkpoint_s": 10}
LOSE_A_RACK = {"planned": [{"at_s": 12, "level": "rack", "name": "z0-r0", "for_s": 20}]}


def run(loaded, mode="requests", **changed):
    simulation = Simulation(loaded(mode=mode, **changed))
    outcome = simulation.run()
    simulation.world.ledger.check_integrity()
    return outcome


@pytest.mark.parametrize("mode", ["requests", "intervals"])
def test_the_same_seed_gives_the_same_result_and_another_does_not(loaded, mode):
    about = {"works": [TUNE], "failures": LOSE_A_RACK | {"random": {"node": {"mtbf_hours": 0.05, "repair_s": 10}}}}
    first = run(loaded, mode, duration_s=15, **about)
    assert run(loaded, mode, duration_s=15, **about) == first
    assert run(loaded, mode, duration_s=15, seed=8, **about) != first


@pytest.mark.parametrize(("per_s", "works"), [(60, [TUNE]), (240, [])])
def test_both_ways_agree_while_a_service_keeps_up(loaded, service, per_s, works):
    """p50, p99 and the use of devices by a request within 10%, other work within 5%."""
    services = [service(demand={"rate_per_s": per_s})]
    single, rates = (
        run(loaded, mode, services=services, works=works, duration_s=30) for mode in ("requests", "intervals")
    )
    one, other = single.services["home"], rates.services["home"]
    assert other.asked == pytest.approx(one.asked, rel=0.1)  # each draws its own arrivals
    assert other.p50_ms == pytest.approx(one.p50_ms, rel=0.1)
    assert other.p99_ms == pytest.approx(one.p99_ms, rel=0.1)
    assert rates.serving / other.asked == pytest.approx(single.serving / one.asked, rel=0.1)
    if works:
        assert rates.works["tune"].steps == pytest.approx(single.works["tune"].steps, rel=0.05)


def test_both_ways_agree_when_more_is_asked_than_can_be_answered(loaded, service):
    """What is shed and what is in time, within 10% of the requests."""
    changed = service(replicas=1, demand={"rate_per_s": 400}, max_wait_ms=800)
    single, rates = (run(loaded, mode, services=[changed], duration_s=20) for mode in ("requests", "intervals"))
    one, other = single.services["home"], rates.services["home"]
    assert 0.2 < one.shed / one.asked < 0.6
    assert other.shed / other.asked == pytest.approx(one.shed / one.asked, abs=0.1)
    assert other.violations / other.asked == pytest.approx(one.violations / one.asked, abs=0.1)


@pytest.mark.parametrize("mode", ["requests", "intervals"])
def test_with_a_rack_its_requests_go_elsewhere_and_its_copies_come_back(loaded, mode):
    simulation = Simulation(loaded(mode=mode, works=[TUNE], failures=LOSE_A_RACK))
    outcome = simulation.run()
    home = outcome.services["home"]
    assert home.lost == 0
    assert home.retried > 0
    assert outcome.outages == 1
    assert outcome.decisions["Release"] >= 1
    assert outcome.decisions["Grant"] >= 1
    assert simulation.trails["home"].running[-1] == 4
    assert min(simulation.trails["home"].running) == 3
    # for 20 s and the 10 s of its start the rack's device is not there; the other three always are
    assert outcome.device_hours * 3_600 == pytest.approx(4 * 60 - 30, abs=0.5)


def test_a_lost_fine_tune_goes_on_from_its_checkpoint(loaded):
    outcome = run(loaded, "intervals", works=[TUNE | {"copies": 4, "min_milli": 700}], failures=LOSE_A_RACK)
    tune = outcome.works["tune"]
    assert outcome.decisions["Requeue"] == 1
    assert 0 < tune.lost_steps <= 10 * 200  # at most the distance of two checkpoints, at 200 steps a second


def test_work_with_an_end_ends_and_gives_its_slice_back(loaded):
    outcome = run(loaded, "intervals", works=[TUNE | {"units": 1_000, "copies": 2}])
    tune = outcome.works["tune"]
    assert (tune.steps, tune.succeeded) == (2_000, 2)
    assert tune.slice_hours * 3_600 < 2 * 0.3 * 60


def test_other_work_shares_what_is_left_by_weight(loaded, service):
    """One device: 100 milli beside 300, both as much as they can get."""
    works = [TUNE | {"copies": 1}, {"name": "eval", "kind": "evaluate", "min_milli": 100, "unit_ms": 5}]
    services = [service(replicas=1, demand={"rate_per_s": 1})]
    for mode in ("requests", "intervals"):
        found = run(loaded, mode, services=services, works=works, fleet=[{"kind": "gpu"}], duration_s=10)
        assert found.works["tune"].steps / found.works["eval"].steps == pytest.approx(3, rel=0.1)
        assert found.utilisation > 0.95


class Steps:
    """An autoscaler that wants more at a time; keeps what it was shown."""

    def __init__(self):
        self.seen = []

    def decide(self, signals):
        self.seen.append(signals)
        return Target(6 if signals.at_s >= 30 else 4, ("because",))


@pytest.mark.parametrize("mode", ["requests", "intervals"])
def test_an_autoscaler_sees_each_interval_and_new_replicas_take_their_time(loaded, mode):
    autoscaler = Steps()
    simulation = Simulation(loaded(mode=mode), {"home": autoscaler})
    outcome = simulation.run()
    assert outcome.services["home"].actions == 1
    assert [round(each.at_s) for each in autoscaler.seen[:3]] == [5, 10, 15]
    assert sum(each.arrived for each in autoscaler.seen) == pytest.approx(100 * 55, rel=0.05)
    trail = simulation.trails["home"]
    running = dict(zip(trail.at_s, trail.running, strict=True))
    assert (running[35], running[40], running[45]) == (4, 6, 6)  # asked for at 30 s, there 10 s later
    assert {each.starting for each in autoscaler.seen} == {0, 2}


def test_an_outage_within_an_outage_ends_with_the_longer_one(loaded):
    planned = [
        {"at_s": 10, "level": "zone", "name": "z0", "for_s": 5},
        {"at_s": 12, "level": "rack", "name": "z0-r0", "for_s": 20},
    ]
    outcome = run(loaded, "intervals", failures={"planned": planned})
    # of zone z0 one device is gone for 5 + 10 s, the other from 10 s until 32 + 10 s
    assert outcome.device_hours * 3_600 == pytest.approx(4 * 60 - 15 - 32, abs=0.5)


def test_small_pools_are_simulated_by_request_and_large_ones_by_rate(loaded, service):
    assert mode_of(loaded()) == "requests"
    assert mode_of(loaded(services=[service(demand={"rate_per_s": 1e6})])) == "intervals"
    assert mode_of(loaded(fleet=[{"kind": "gpu", "racks": 100}])) == "intervals"


def test_the_live_autoscaler_follows_demand_up_and_down(loaded, service):
    demand = {"rate_per_s": None, "points": [[0, 60], [40, 60], [60, 500], [150, 500], [170, 60], [400, 60]]}
    changed = service(replicas=2, demand=demand, autoscale={"min_replicas": 2, "max_replicas": 8})
    simulation = Simulation(loaded(mode="intervals", services=[changed], duration_s=330, interval_s=10))
    outcome = simulation.run()
    trail = simulation.trails["home"]
    running = dict(zip(trail.at_s, trail.running, strict=True))
    assert running[40] == 2
    assert running[140] >= 3  # one replica answers 260 a second at most
    assert running[320] == 2
    assert outcome.services["home"].actions >= 2
