"""Serving replicas claim slices and renew them; no controller that comes or goes takes one away."""

from __future__ import annotations

from dataclasses import replace

import pytest

from configs.errors import Conflict
from pool.runtime.messages import Claim

CLAIM = Claim("replica-1", "gateway", "n1", "cpu", core_milli=250, slo_ms=50.0, version="7")
SECOND = replace(CLAIM, holder="replica-2")


def test_replicas_get_slices_of_different_devices_of_their_node(run):
    one, two = run.controller.claim(CLAIM), run.controller.claim(SECOND)
    assert {one.device.id, two.device.id} == {"gpu-0", "gpu-1"}
    assert one.lease.milli == 250, "thousandths of its one core"
    report = run.controller.workload("gateway")
    assert (report.kind, report.priority, report.phase) == ("inference", "guaranteed", "running")


def test_a_renewal_changes_nothing_and_a_replica_that_forgot_gets_what_it_has(run):
    first = run.controller.claim(CLAIM)
    assert run.controller.claim(replace(CLAIM, lease=first.lease)).lease == first.lease
    assert run.controller.claim(CLAIM).lease == first.lease
    assert len(run.book()) == 1


def test_a_replica_that_does_not_renew_has_left(run):
    run.controller.claim(CLAIM)
    for _ in range(10):
        run.tick(every_s=2)
        run.controller.claim(SECOND)
    assert len(run.book()) == 1
    run.tick(10, every_s=2)
    assert run.book() == {}


def test_slices_outlive_a_controller_and_even_its_journal(make, tmp_path):
    first = make()
    claimed = first.controller.claim(CLAIM)
    second = make()
    assert second.book() == {claimed.lease.id: "gateway"}
    assert second.controller.claim(replace(CLAIM, lease=claimed.lease)).lease.id == claimed.lease.id
    (tmp_path / "pool" / "journal.json").unlink()
    third = make()
    assert third.book() == {}
    assert third.controller.claim(replace(CLAIM, lease=claimed.lease)).lease.id == claimed.lease.id
    third.tick(3)
    assert third.book() == {claimed.lease.id: "gateway"}


def test_a_full_device_gives_what_is_left_and_the_rest_once_there_is_room(run):
    for name in ("a", "b"):
        run.started(name, min_milli=900)
    claimed = run.controller.claim(CLAIM)
    assert claimed.lease.milli == 100
    beside = next(
        w
        for lease, w in run.book().items()
        if w != "gateway" and run.controller.workload(w).device == claimed.device.id
    )
    lease = run.lease(beside)
    run.controller.cancel(beside, "room")
    run.ground.ends(lease, "stopped")
    run.tick()
    assert run.controller.claim(replace(CLAIM, lease=claimed.lease)).lease.milli == 250


def test_a_missed_slo_takes_best_effort_work_off_the_device(make, settings):
    run = make(devices=settings.devices[:1])
    run.controller.claim(replace(CLAIM, core_milli=500))
    lease = run.started("night", min_milli=300)
    for _ in range(40):  # ten seconds; claims lapse after fifteen
        run.controller.claim(replace(CLAIM, core_milli=500, p99_ms=400.0))
        run.tick()
    assert (lease, "preempt") in run.ground.told
    assert run.phase("night") == "preempted"


def test_a_name_is_either_served_or_declared(run):
    run.submit("night")
    with pytest.raises(Conflict, match="declared workload"):
        run.controller.claim(replace(CLAIM, workload="night"))
    run.controller.claim(CLAIM)
    with pytest.raises(Conflict, match="served by Serve"):
        run.submit("gateway")


def test_a_node_without_devices_is_refused_with_the_book(run):
    with pytest.raises(Conflict, match="book of epoch"):
        run.controller.claim(replace(CLAIM, node_id="elsewhere"))


def test_headroom_is_what_p99_leaves_of_the_slo(run):
    run.controller.claim(replace(CLAIM, p99_ms=20.0, queue=3))
    [mine] = [each for device in run.controller.report().devices for each in device.slices]
    assert (mine.headroom, mine.queue, mine.version) == (pytest.approx(0.6), 3, "7")


def test_a_replica_that_leaves_gives_its_slice_back(run):
    run.controller.claim(CLAIM)
    run.controller.unclaim("replica-1")
    run.controller.unclaim("nobody")
    assert run.book() == {}
