"""The pool's runtime on a small Ray: real processes on real gates, killed where it hurts."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from configs.errors import Conflict, InvalidRequest, NotFound, Unavailable
from configs.settings import build_settings
from deployments.pool import start_controller
from deployments.pool_client import NAMESPACE
from pool import checkpoints
from pool.runtime.actors import AGENT, HOST
from pool.runtime.messages import Order
from pool.workload import WorkloadSpec

PATIENCE_S = 60.0
CHECKPOINT_S = 0.3
CORE = min(os.sched_getaffinity(0))
OTHER = max(os.sched_getaffinity(0))
ENDLESS = "100000000"


def wait_for(truth: Callable[[], Any], what: str) -> Any:
    deadline_s = time.monotonic() + PATIENCE_S
    while not (found := truth()):
        assert time.monotonic() < deadline_s, f"{what} did not come about"
        time.sleep(0.05)
    return found


class Pool:
    """A controller and what a test asks of it."""

    def __init__(self, home: Path, name: str):
        cores = {"pool-a": CORE, "pool-b": OTHER} if CORE != OTHER else {"pool-a": CORE}
        devices = [
            {"id": each, "kind": "gpu", "emulated": True, "cores": [core], "memory_bytes": 1 << 30}
            for each, core in cores.items()
        ]
        runtime = {
            "enabled": True,
            "tick_s": 0.05,
            "checkpoint_s": CHECKPOINT_S,
            "gate_folder": str(home / "gates"),
            "takeover_s": 30,
        }
        quick = {"breaker": {"crashes": 2, "first_wait_s": 0.1}, "movement": {"resume_after_s": 0.1}}
        settings = {"home": str(home), "pool": {"devices": devices, "runtime": runtime, **quick}}
        self.settings, self.home, self.name = build_settings(settings), home, name
        self.handle = self.controller(name)

    def controller(self, name: str) -> Any:
        return start_controller(self.settings, "counting:make_work", name, argument=str(self.home))

    def ask(self, method: str, *arguments: Any) -> Any:
        """A controller that is being started again is asked again."""
        deadline_s = time.monotonic() + PATIENCE_S
        while True:
            try:
                return ray.get(getattr(self.handle, method).remote(*arguments), timeout=PATIENCE_S)
            except (Unavailable, ray.exceptions.RayActorError):
                assert time.monotonic() < deadline_s
                time.sleep(0.05)

    def submit(self, name: str, model: str = ENDLESS, **more: Any) -> None:
        spec = {"name": name, "kind": "finetune", "model": model, "tier": ("gpu",), "min_milli": 300, **more}
        self.ask("submit", WorkloadSpec.model_validate(spec))

    def phase(self, name: str) -> str:
        return self.ask("workload", name).phase

    def await_phase(self, name: str, phase: str) -> Any:
        def reached() -> bool:
            return self.phase(name) == phase

        try:
            wait_for(reached, f"{name} {phase}")
        except AssertionError as error:
            raise AssertionError(f"{error}: {self.ask('report')}") from None
        return self.ask("workload", name)

    def await_progress(self, name: str) -> None:
        before = self.ask("workload", name).progress or 0
        wait_for(lambda: (self.ask("workload", name).progress or 0) > before, f"progress of {name}")

    def slices(self) -> dict[str, Any]:
        return {each.lease: each for device in self.ask("report").devices for each in device.slices}

    def lease_of(self, name: str) -> str:
        return next(lease for lease, each in self.slices().items() if each.workload == name)

    def host(self, lease: str) -> Any:
        return ray.get_actor(HOST + lease, namespace=NAMESPACE)

    def diary(self, name: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in (self.home / f"{name}.jsonl").read_text().splitlines()]

    def names(self, prefix: str) -> list[str]:
        rows: list[Any] = ray.util.list_named_actors(all_namespaces=True)
        return [row["name"] for row in rows if row["name"].startswith(prefix)]

    def end(self) -> None:
        controllers = {self.name, "pool-second"} & set(self.names(""))
        for name in [*controllers, *self.names(HOST), *self.names(AGENT)]:
            ray.kill(ray.get_actor(name, namespace=NAMESPACE), no_restart=True)


@pytest.fixture(scope="module")
def pool(cluster, tmp_path_factory) -> Iterator[Pool]:
    pool = Pool(tmp_path_factory.mktemp("pool"), "pool-controller-of-tests")
    yield pool
    pool.end()


def test_a_workload_is_placed_runs_in_its_gate_is_preempted_and_goes_on_to_its_end(pool):
    pool.submit("short", "1500")
    pool.await_phase("short", "running")
    pool.await_progress("short")
    [mine] = [each for each in pool.slices().values() if each.workload == "short"]
    assert (mine.leased_milli, mine.priority) == (300, "best_effort")
    wait_for(lambda: next(iter(pool.slices().values())).metered_milli > 0, "metered time")

    assert pool.ask("preempt", "short", "somebody asked").phase == "preempted"
    wait_for(lambda: not pool.slices(), "the lease to be given back")
    assert pool.phase("short") == "preempted"

    pool.ask("resume", "short")
    assert pool.await_phase("short", "succeeded").result == {"counted": 1500}
    started, resumed = [each for each in pool.diary("short") if each["what"] == "resume"], pool.diary("short")
    assert len(started) == 1 and started[0]["done"] > 0
    assert resumed[0]["done"] == 0
    wait_for(lambda: not pool.slices() and not pool.names(HOST), "the device to be free")


@pytest.fixture(scope="module")
def steady(pool) -> str:
    """A workload that runs as long as the module does."""
    pool.submit("steady")
    pool.await_phase("steady", "running")
    return "steady"


def test_over_commitment_and_what_does_not_exist_are_refused_with_the_book_and_nothing_changes(pool, steady):
    before = pool.slices()
    with pytest.raises(NotFound, match="no-such-device.*book of epoch"):
        pool.ask("migrate", steady, "no-such-device")
    with pytest.raises(NotFound, match=f"known: .*{steady}"):
        pool.ask("preempt", "nobody", "why not")
    with pytest.raises(Conflict, match="is running"):
        pool.submit(steady)
    with pytest.raises(InvalidRequest, match="memory_bytes.*book of epoch"):
        pool.submit("huge", memory_bytes=1 << 40)
    with pytest.raises(Conflict, match="has steady already.*book of epoch"):
        pool.ask("migrate", steady, pool.ask("workload", steady).device)
    assert {lease: each.leased_milli for lease, each in before.items() if each.workload == steady} == {
        lease: each.leased_milli for lease, each in pool.slices().items() if each.workload == steady
    }


def test_a_host_that_is_killed_is_started_again_from_its_checkpoint(pool, steady):
    lease = pool.lease_of(steady)
    wait_for(lambda: (ray.get(pool.host(lease).status.remote()).checkpointed_s) is not None, "a checkpoint")
    status = ray.get(pool.host(lease).status.remote())
    os.kill(status.pid, signal.SIGSTOP)  # so that the newest checkpoint stays the newest
    [newest] = [checkpoints.latest(each) for each in pool.home.rglob("checkpoints") if each.parent.name == steady]
    saved_at_s = json.loads((newest / "done.json").read_text())["at_s"]
    os.kill(status.pid, signal.SIGKILL)
    resumed = wait_for(lambda: [each for each in pool.diary(steady) if each["what"] == "resume"], "a resumption")[-1]
    assert resumed["done"] > 0
    assert resumed["saved_at_s"] == saved_at_s
    pool.await_phase(steady, "running")
    assert pool.ask("workload", steady).restarts == 1
    assert pool.lease_of(steady) != lease


def test_a_controller_that_is_killed_finds_what_runs_and_nothing_of_it_stops(pool, steady):
    pool.await_phase(steady, "running")
    before, epoch, starts = pool.slices(), pool.ask("report").epoch, len(pool.diary(steady))
    ray.kill(pool.handle, no_restart=False)
    [name] = pool.names(HOST)
    progress = ray.get(ray.get_actor(name, namespace=NAMESPACE).status.remote()).progress.done
    report = pool.ask("report")
    assert report.epoch > epoch
    assert {lease: each.leased_milli for lease, each in pool.slices().items()} == {
        lease: each.leased_milli for lease, each in before.items()
    }
    held = [ray.get(pool.host(name.removeprefix(HOST)).status.remote()) for name in pool.names(HOST)]
    assert {status.lease.id for status in held} == set(before)
    assert {status.epoch for status in held} == {report.epoch}
    pool.await_progress(steady)
    assert ray.get(pool.host(held[0].lease.id).status.remote()).progress.done > progress
    assert len(pool.diary(steady)) == starts


def test_work_that_cannot_be_done_fails_with_the_reason_and_work_that_crashes_again_and_again_is_parked(pool):
    pool.submit("wrong", "fails")
    pool.submit("broken", "dies")
    assert "nothing to count" in pool.await_phase("wrong", "failed").reason
    assert "crashed 2 times" in pool.await_phase("broken", "parked").reason
    assert pool.ask("report").decisions[-1].reason


def test_a_second_controller_waits_while_the_first_lives_and_fences_out_what_it_said(pool, steady):
    """Case 24: of two controllers one acts; the next takes over under a newer epoch, which the hosts obey alone."""
    first, epoch, before = pool.handle, pool.ask("report").epoch, pool.slices()
    second = pool.controller("pool-second")

    def says_why() -> bool:
        with pytest.raises(Unavailable) as told:
            ray.get(second.workloads.remote(), timeout=PATIENCE_S)
        return "another controller, process" in told.value.message

    wait_for(says_why, "the second to say that it waits")
    assert (pool.ask("report").epoch, pool.slices().keys()) == (epoch, before.keys())

    ray.kill(first, no_restart=True)
    pool.handle = second
    wait_for(lambda: pool.ask("report").epoch > epoch, "a newer epoch")
    assert pool.phase(steady) == "running"
    lease = pool.lease_of(steady)
    assert lease in before
    with pytest.raises(Conflict, match="is over"):
        ray.get(pool.host(lease).preempt.remote(Order(epoch, "by the old one")))
    pool.await_progress(steady)
    pool.ask("cancel", steady, "the test is over")
    wait_for(lambda: not pool.slices(), "the device to be free")
