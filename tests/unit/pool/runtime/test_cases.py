"""Cases that pools are known to fail in, by their numbers: flapping, small slices, crash loops, early binding."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from configs.pool_settings import PoolSettings, ShareSettings
from pool.device import Device, Topology
from pool.ledger import Ledger
from pool.policy.observation import DeviceView, LeaseView, PlannerState, PoolObservation, SliceMetrics, WorkloadView
from pool.policy.planner import tick
from pool.policy.shares import DeviceShares, SliceView, share_device
from pool.runtime import actors
from pool.runtime.messages import Factory, HostOrder, Site
from pool.workload import WorkloadSpec, WorkloadState

GIB = 1 << 30


# Case 25: replicas flap 500 <-> 2000


@pytest.mark.parametrize("period_s", [0.5, 1.0, 2.0, 4.0])
def test_case_25_a_load_that_swings_fast_does_not_swing_the_shares(period_s):
    settings = ShareSettings()
    online = SliceView("1-1", "online", "guaranteed", 200, 1_000, 200, p99_ms=1.0, slo_ms=10.0)
    trainer = SliceView("1-2", "trainer", "best_effort", 100, 1_000, 100, wants=True)
    state, history = DeviceShares(), []
    for step in range(int(60 / 0.25)):
        now_s = step * 0.25
        load_ms = 9.5 if (now_s % period_s) < period_s / 2 else 1.0
        online = online._replace(p99_ms=load_ms)
        decided, state = share_device([online, trainer], state, now_s, settings)
        weights = dict(decided.weights or ())
        online = online._replace(weight_milli=weights.get("1-1", online.weight_milli))
        trainer = trainer._replace(weight_milli=weights.get("1-2", trainer.weight_milli))
        history.append(online.weight_milli)
    steps = [after - before for before, after in zip(history, history[1:], strict=False) if after != before]
    turns = sum((one > 0) != (other > 0) for one, other in zip(steps, steps[1:], strict=False))
    assert turns == 0, "it grows to what the peaks need, and stays"


def test_case_25_load_moves_a_lease_once_within_its_dwell_time():
    devices = tuple(DeviceView(Device(name, "cpu", GIB, Topology(name))) for name in ("a", "b"))
    settings = PoolSettings()
    spec = WorkloadSpec(name="online", kind="inference", model="m", min_milli=300, slo_ms=10.0, replicas=2)
    about = WorkloadView(WorkloadState(spec, "running"))
    leases = [LeaseView(f"1-{n}", "online", "a", 300, 0) for n in (1, 2)]
    state, moves, now_s = PlannerState(), 0, 0.0
    while now_s < settings.movement.move_dwell_s - 1:
        # Wherever the load goes, it is that device which misses its SLO next.
        crowd = max(("a", "b"), key=lambda name: sum(lease.device == name for lease in leases))
        metrics = {each.id: SliceMetrics(1_000, 900, True, 50.0 if each.device == crowd else 1.0) for each in leases}
        seen = PoolObservation(devices, (about,), tuple(leases), metrics)
        decisions, state = tick(seen, state, now_s, settings)
        for made in decisions:
            if type(made).__name__ == "Migrate":
                moves += 1
                leases = [replace(each, device=made.device) if each.id == made.lease else each for each in leases]
        now_s += 0.25
    assert moves <= len(leases)


def test_case_25_work_leaves_its_device_before_its_place_is_given_away_and_starts_once_it_has_left(run):
    lease = run.started("night", min_milli=900)
    other = run.started("day", min_milli=900)
    run.submit("guaranteed", priority="guaranteed", min_milli=500)
    run.tick()
    [(gone, verb)] = [told for told in run.ground.told if told[1] == "preempt"]
    assert verb == "preempt" and gone in (lease, other), "it is asked to checkpoint and to leave, not ended"
    run.tick(5)
    assert gone in run.book() and not run.ground.killed and "guaranteed" not in run.book().values()
    run.ground.ends(gone, "preempted")
    run.tick(2)
    assert gone not in run.book() and "guaranteed" in run.book().values()


# Case 26: 0.18-GPU actors unschedulable; bundle index ignored below one GPU


def test_case_26_slices_are_whole_thousandths_and_add_up_to_the_device_exactly():
    ledger = Ledger([Device("gpu-0", "gpu", GIB, Topology("n1"))])
    epoch = ledger.epoch
    for _ in range(5):
        ledger.grant("ranker", "gpu-0", 180, 0, epoch)
    assert ledger.free("gpu-0") == (100, GIB)
    for _ in range(100):
        ledger.grant("tiny", "gpu-0", 1, 0, epoch)
    assert ledger.free("gpu-0") == (0, GIB)
    ledger.check_integrity()


class Options:
    """Keeps what an actor is started with."""

    def __init__(self) -> None:
        self.given: dict[str, Any] = {}

    def options(self, **given: Any) -> Options:
        self.given = given
        return self

    def remote(self, order: HostOrder) -> None:
        return None


@pytest.mark.parametrize(("milli", "index"), [(180, 3), (1, 0), (1_000, None)])
def test_case_26_a_host_is_bound_to_the_very_device_of_its_lease(monkeypatch, milli, index):
    started = Options()
    monkeypatch.setattr(actors, "_remote", lambda kind: started)
    device = Device(
        "gpu-3", "gpu", GIB, Topology("n1"), cores=() if index is not None else (0,), emulated=index is None
    )
    ledger = Ledger([device])
    lease = ledger.grant("ranker", "gpu-3", milli, 0, ledger.epoch)
    spec = WorkloadSpec(name="ranker", kind="finetune", model="m", min_milli=milli, tier=("gpu",))
    ground = actors.RayGround("serve")
    node = "0" * 56
    ground._resources = {node: {"device/gpu-3": 1.0, "GPU": 4.0}}
    order = HostOrder(1, lease, spec, device, index, Path("gates"), Path("work"), Factory("m:f"), 30.0)
    ground.start(order, Site(device, node, index))
    assert started.given["resources"] == {"device/gpu-3": milli / 1_000}, "of that device, not of any GPU"
    assert started.given["scheduling_strategy"].node_id == node and not started.given["scheduling_strategy"].soft
    seen = started.given["runtime_env"]["env_vars"].get("CUDA_VISIBLE_DEVICES")
    assert seen == (None if index is None else str(index))


# Case 27: out of memory 200 times in a row


def test_case_27_work_that_runs_out_of_memory_again_and_again_is_parked_and_says_so(make):
    run = make()
    run.submit("greedy")
    starts = 0
    for _ in range(200):
        run.tick(4, every_s=2)
        for lease in list(run.ground.hosts):
            starts += 1
            run.ground.lost = {lease: "the process was killed for want of memory"}
            run.tick()
    report = run.controller.workload("greedy")
    assert starts == 3, "as many as the breaker allows, not two hundred"
    assert report.phase == "parked" and run.book() == {}
    assert "crashed 3 times" in report.reason and "want of memory" in report.reason
    assert [each.what for each in run.controller.report().decisions][-1] == "park greedy"
    other = run.started("modest")
    assert other in run.book(), "the others do not suffer for it"


# Case 28: a queued request bound to a busy replica while a new one idles


@pytest.mark.parametrize("first", ["gpu-0", "gpu-1"])
def test_case_28_what_waits_belongs_to_no_device_and_takes_the_first_that_is_free(run, first):
    leases = [run.started(name, min_milli=1_000, kind="warmup") for name in ("one", "other")]
    run.submit("waits", min_milli=1_000, kind="warmup")
    run.tick(3)
    waiting = run.controller.workload("waits")
    assert (waiting.phase, waiting.device) == ("queued", None)
    on = {run.ground.orders[lease].device.id: lease for lease in leases}
    run.ground.ends(on[first], "succeeded")
    run.tick(2)
    assert run.controller.workload("waits").device == first


def test_case_28_a_device_that_comes_later_serves_what_waited_before_it(run):
    for name in ("one", "other"):
        run.started(name, min_milli=1_000, kind="warmup")
    run.submit("waits", min_milli=300, kind="warmup", tier=("gpu", "cpu"))
    run.tick(3)
    assert run.phase("waits") == "queued"
    run.ground.ends(run.lease("one"), "succeeded")
    run.tick(2)
    assert run.phase("waits") == "starting"
