"""A controller that starts agrees with what runs; the one before it is heard no more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from configs.errors import Conflict, Unavailable
from configs.pool_settings import PoolSettings
from pool.gate.readings import GateReading, SlotView
from pool.runtime.applying import Places
from pool.runtime.controller import PoolController
from pool.runtime.journal import Journal
from pool.runtime.messages import Factory
from pool.runtime.state import Fenced


def held(ground) -> dict[str, tuple[str, int]]:
    return {key: (status.spec.name, status.lease.milli) for key, status in ground.hosts.items()}


def booked(run) -> dict[str, tuple[str, int]]:
    slices = [each for device in run.controller.report().devices for each in device.slices]
    return {each.lease: (each.workload, each.leased_milli) for each in slices}


def test_before_it_has_taken_over_it_says_so(settings, ground, tmp_path):
    controller = PoolController(settings, ground, Places(tmp_path, tmp_path, Factory("m:f"), 1.0))
    with pytest.raises(Unavailable, match="taking over"):
        controller.workloads()


def test_the_book_afterwards_is_what_the_hosts_hold_and_they_go_on(make):
    first = make()
    lease, epoch = first.started("night"), first.controller.report().epoch
    first.submit("queued", min_milli=1_000, tier=("npu",))
    second = make()
    assert booked(second) == held(second.ground) == {lease: ("night", 300)}
    assert second.controller.report().epoch > epoch
    second.tick(3)
    assert (second.phase("night"), second.phase("queued")) == ("running", "queued")
    assert len(second.ground.orders) == 1 and second.ground.killed == []


def test_without_a_journal_what_runs_is_found_from_the_hosts_alone(make, tmp_path):
    lease = make().started("night")
    (tmp_path / "pool" / "journal.json").unlink()
    second = make()
    second.tick()
    assert booked(second) == {lease: ("night", 300)}
    assert second.phase("night") == "running"


def test_a_damaged_journal_is_set_aside(make, tmp_path):
    make().started("night")
    (tmp_path / "pool" / "journal.json").write_bytes(b'{"format": 1, "epo')
    second = make()
    second.tick()
    assert second.phase("night") == "running"
    assert (tmp_path / "pool" / "journal.damaged").exists()


def test_a_slice_that_was_booked_and_never_used_is_free_again(make, ground):
    first = make()
    first.submit("night")
    first.tick()
    ground.hosts.clear()
    second = make()
    assert booked(second) == {}
    second.tick()
    assert second.phase("night") == "starting"
    assert second.controller.workload("night").restarts == 0


def test_a_host_that_is_there_and_silent_keeps_its_slice(make, ground):
    lease = make().started("night")
    ground.silent.add(lease)
    second = make()
    assert booked(second) == {lease: ("night", 300)}
    second.tick(3)
    assert len(ground.orders) == 1


def test_what_ended_while_no_controller_was_there_is_settled(make, ground):
    first = make()
    lease = first.started("night")
    ground.ends(lease, "succeeded", version=3)
    second = make()
    second.tick()
    assert second.phase("night") == "succeeded"
    assert second.controller.workload("night").result == {"version": 3}
    assert booked(second) == {} and ground.hosts == {}


def test_a_host_that_was_to_leave_is_told_again(make, ground):
    first = make()
    lease = first.started("night")
    first.controller.preempt("night", "somebody asked")
    ground.told.clear()
    second = make()
    assert ground.told == [(lease, "preempt")]
    ground.ends(lease, "preempted")
    second.tick(50)
    assert second.phase("night") == "preempted" and booked(second) == {}


def test_crashes_are_remembered(make, ground, clock):
    first = make()
    lease = first.started("night")
    ground.lost = {lease: "it died"}
    first.tick()
    clock.now_s += 1
    second = make()
    assert second.controller.workload("night").restarts == 1
    second.tick(20)
    ground.lost = {second.lease("night"): "it died"}
    second.tick(20)
    ground.lost = {second.lease("night"): "it died"}
    second.tick(2)
    assert second.phase("night") == "parked"


def test_the_controller_before_is_fenced_out_and_changes_nothing_more(make, ground, tmp_path):
    first = make()
    first.started("night")
    second = make()
    journal = (tmp_path / "pool" / "journal.json").read_bytes()
    with pytest.raises(Conflict, match="newer|is over|taken over"):
        first.submit("late")
    with pytest.raises(Conflict):
        first.tick()
    with pytest.raises(Conflict):
        first.controller.preempt("night", "by the old one")
    assert first.controller.closed
    assert (tmp_path / "pool" / "journal.json").read_bytes() == journal
    second.tick()
    assert second.phase("night") == "running"


def test_leases_that_no_device_has_room_for_any_more_are_given_up_newest_first(make, ground):
    first = make()
    old = first.started("old", memory_bytes=600 << 20)
    new = first.started("new", memory_bytes=600 << 20)
    smaller = [{"id": "gpu-0", "kind": "gpu", "emulated": True, "cores": [0], "memory_bytes": 1 << 30}]
    both = {key: replace(each, lease=replace(each.lease, device="gpu-0")) for key, each in ground.hosts.items()}
    ground.hosts = both
    second = make(devices=PoolSettings.model_validate({"devices": smaller}).devices)
    assert booked(second) == {old: ("old", 300)}
    assert ground.killed == [new]
    second.tick()
    assert second.phase("new") == "queued"


def test_the_journal_is_written_only_when_something_changed(make, tmp_path):
    run = make()
    run.started("night")
    run.tick(2)
    file = tmp_path / "pool" / "journal.json"
    before = file.stat().st_ino
    run.tick(20)
    assert file.stat().st_ino == before
    run.submit("other")
    assert file.stat().st_ino != before


def test_a_journal_gives_back_what_was_written(make, tmp_path, clock):
    run = make()
    run.started("night", memory_bytes=5)
    run.submit("queued", tier=("npu",))
    ledger, records, claims = Journal(tmp_path / "pool", clock.wall() - clock.monotonic()).read() or (None, {}, {})
    assert ledger is not None
    assert {lease.workload: (lease.milli, lease.memory_bytes) for lease in ledger.leases()} == {"night": (300, 5)}
    assert {name: record.phase for name, record in records.items()} == {"night": "running", "queued": "queued"}
    assert records["queued"].queued_s == pytest.approx(clock.now_s)
    assert claims == {}


def test_metered_shares_come_from_two_readings_a_second_apart(make, ground):
    def reading(at_ns: int, metered_ns: int) -> GateReading:
        slot = SlotView(0, 1, "night", 1, 1, "best_effort", 300, "run", metered_ns, False, True, 1, 2, at_ns)
        return GateReading(run.controller.workload("night").device, at_ns, 1, (slot,))

    run = make()
    run.started("night")
    other = {"gpu-0": "gpu-1", "gpu-1": "gpu-0"}[run.controller.workload("night").device]
    for second in range(1, 5):
        now = reading(second * 1_000_000_000, second * 250_000_000)
        ground.readings["n1"] = (now, GateReading(other, now.at_ns, 1, ()))
        run.tick(every_s=1)
    [mine] = [each for device in run.controller.report().devices for each in device.slices]
    assert (mine.metered_milli, mine.share_milli, mine.preemptions) == (250, 300, 2)


def test_a_controller_that_an_actor_refuses_ends_at_the_next_tick(make, ground):
    run = make()
    run.started("night")
    ground.epoch = 99
    with pytest.raises(Fenced, match="epoch 99"):
        run.tick()
    with pytest.raises(Conflict, match="epoch 99"):
        run.controller.workloads()
