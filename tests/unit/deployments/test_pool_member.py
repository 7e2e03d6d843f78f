"""A serving replica claims its slice and computes behind its gate; without any of this it serves all the same."""

from __future__ import annotations

import os

import pytest

from configs.errors import Unavailable
from configs.settings import Settings, build_settings
from deployments import pool_member
from deployments.pool_member import LEAST_REQUESTS, PoolMember
from pool.device import Device, Topology
from pool.gate.segment import GateSegment
from pool.lease import Lease
from pool.policy.latency import BatchTime
from pool.runtime.messages import Claim, Claimed

CORES = tuple(sorted(os.sched_getaffinity(0)))


def device(name: str) -> Device:
    return Device(name, "gpu", 1, Topology("n"), CORES, emulated=True)


class FakeServing:
    def __init__(self) -> None:
        self.gates, self.took_ms, self.queue = [], [], 3

    def pass_gate(self, gate) -> None:
        self.gates.append(gate)

    def latencies_ms(self, over_s: float) -> list[float]:
        return self.took_ms

    def batch_times(self) -> tuple[BatchTime, ...]:
        return (BatchTime(8, 5.0, 9.0, 12),)


class FakeController:
    """Grants a slice of a device; none while there is no device."""

    def __init__(self, folder):
        self.folder, self.device, self.claims, self.shadow = folder, device("gpu-0"), [], False

    def __call__(self, claim: Claim) -> Claimed:
        self.claims.append(claim)
        if self.device is None:
            raise Unavailable("no pool controller runs")
        lease = Lease("1-1", claim.workload, self.device.id, 0 if self.shadow else 100, 0, 1)
        return Claimed(lease, self.device, self.folder, 2.0, self.shadow)


@pytest.fixture
def settings() -> Settings:
    return build_settings({"pool": {"runtime": {"enabled": True, "serving_slo_ms": 40}}})


@pytest.fixture
def controller(tmp_path, monkeypatch) -> FakeController:
    for name in ("gpu-0", "gpu-1"):
        GateSegment.create(tmp_path, device(name))
    # Entering a device changes this process's threads for good.
    monkeypatch.setattr(PoolMember, "_enter", lambda self, claimed: None)
    return FakeController(tmp_path)


@pytest.fixture
def serving() -> FakeServing:
    return FakeServing()


@pytest.fixture
def member(settings, serving, controller) -> PoolMember:
    return PoolMember(settings, serving, "gateway", 2, controller, lambda: "7")


def members(controller, name: str) -> list[str]:
    return [slot.workload for slot in GateSegment.open(controller.folder, name).read().slots]


def test_it_joins_the_gate_of_its_device_as_guaranteed_and_renews_what_it_has(member, serving, controller):
    assert member.renew() == 2.0
    [slot] = GateSegment.open(controller.folder, "gpu-0").read().slots
    assert (slot.workload, slot.priority) == ("gateway", "guaranteed")
    with serving.gates[-1].busy():
        assert GateSegment.open(controller.folder, "gpu-0").read().slots[0].busy
    member.renew()
    assert len(serving.gates) == 1
    assert [claim.lease.id if claim.lease else None for claim in controller.claims] == [None, "1-1"]
    assert controller.claims[0].slo_ms == 40 and controller.claims[0].version == "7"


def test_it_says_its_p99_once_it_has_served_enough_to_know_it(member, serving, controller):
    serving.took_ms = [1.0] * (LEAST_REQUESTS - 1)
    member.renew()
    serving.took_ms = [float(ms) for ms in range(1, 101)]
    member.renew()
    assert controller.claims[0].p99_ms is None
    assert controller.claims[1].p99_ms == pytest.approx(99.01)


def test_it_tells_its_process_the_copies_wanted_and_what_it_serves(member, controller):
    member.renew()
    [claim] = controller.claims
    assert (claim.pid, claim.copies, claim.queue) == (os.getpid(), 2, 3)
    assert claim.batches == (BatchTime(8, 5.0, 9.0, 12),)


def test_it_stands_by_as_long_as_it_is_told_to_and_says_its_role_again(member, controller):
    assert not member.stands_by, "whom nobody has told serves"
    controller.shadow = True
    member.renew()
    assert member.stands_by
    controller.shadow = False
    member.renew()
    assert not member.stands_by
    assert [claim.shadow for claim in controller.claims] == [False, True]


def test_on_another_device_it_leaves_the_first_gate_only_after_batches_there_have_ended(member, serving, controller):
    member.renew()
    controller.device = device("gpu-1")
    member.renew()
    assert members(controller, "gpu-1") == members(controller, "gpu-0") == ["gateway"]
    member.renew()
    assert members(controller, "gpu-0") == []
    assert len(serving.gates) == 2


def test_without_a_controller_or_a_gate_it_keeps_the_gate_it_has(member, serving, controller):
    member.renew()
    controller.device = None
    with pytest.raises(Unavailable):
        member.renew()
    assert members(controller, "gpu-0") == ["gateway"]
    assert len(serving.gates) == 1


def test_the_same_trouble_is_logged_once(member, caplog):
    for why in ("no controller", "no controller", "", "no controller"):
        member._say(why)
    assert [record.message for record in caplog.records] == ["gateway serves without the pool: no controller"] * 2


def test_without_a_cluster_there_is_no_controller():
    with pytest.raises(Unavailable, match="not connected"):
        pool_member._ask_controller(Claim("r", "gateway", "n", "cpu", 100))
