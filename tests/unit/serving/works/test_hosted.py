"""The real fine-tune under a host: it is saved every few seconds, when warned, and when it must leave."""

from __future__ import annotations

import sys
import time
import types
from typing import Any

import pytest
import torch

from pool import checkpoints
from pool.device import Device, Topology
from pool.gate.meters import ThreadMeter
from pool.gate.segment import GateSegment
from pool.lease import Lease
from pool.runtime.host import WorkloadHost
from pool.runtime.messages import Factory, HostOrder, Order
from pool.workload import WorkloadSpec
from serving.works.saved import Saved, read_state

PATIENCE_S = 60.0
DEVICE = Device("gpu-0", "gpu", 1, Topology("n"), (0,), emulated=True)
SPEC = WorkloadSpec.model_validate({"name": "night", "kind": "finetune", "model": "all"})


@pytest.fixture
def begin(world, tmp_path, monkeypatch):
    """Start a host of the small fine-tune; its segment is there."""
    GateSegment.create(tmp_path / "gates", DEVICE)
    module = types.ModuleType("small_works")
    module.__dict__["make"] = lambda spec, argument, folder: world.make_finetune(folder)
    monkeypatch.setitem(sys.modules, "small_works", module)

    def start(checkpoint_s: float) -> WorkloadHost:
        lease, factory = Lease("1-1", "night", "gpu-0", 300, 0, 1), Factory("small_works:make")
        places = tmp_path / "gates", tmp_path / "night"
        order = HostOrder(1, lease, SPEC, DEVICE, None, *places, factory, checkpoint_s)
        return WorkloadHost(order, enter=lambda order: ThreadMeter())

    return start


def until(truth) -> None:
    deadline_s = time.monotonic() + PATIENCE_S
    while not truth():
        assert time.monotonic() < deadline_s
        time.sleep(0.001)


def test_what_it_saves_is_what_an_uninterrupted_one_holds(world, begin, tmp_path):
    folder, done = tmp_path / "night" / "checkpoints", []

    def number() -> int:
        newest = checkpoints.latest(folder)
        return int(newest.name.rpartition("-")[2]) if newest else 0

    host = begin(checkpoint_s=0.02)
    until(lambda: number() >= 2)
    host.preempt(Order(1, "somebody asked"))
    assert host.join(PATIENCE_S).end == "preempted"
    done.append(saved(folder).values["done"])
    host = begin(checkpoint_s=1_000.0)
    until(lambda: host.status().resumed and host.status().progress.total)
    before = number()
    host.warn(Order(1, "the node is silent"))
    until(lambda: number() > before)
    host.stop(Order(1))
    assert host.join(PATIENCE_S).end == "stopped"
    done.append(saved(folder).values["done"])
    assert done[0] <= done[1]
    plain = world.make_finetune(tmp_path, place="plain")
    while plain.progress().done < done[1]:
        plain.step(1)
    expected = read_state(checkpoints.write(tmp_path / "expected", plain), "finetune").tensors
    assert_equal(saved(folder).tensors, expected)


def saved(folder) -> Saved:
    newest = checkpoints.latest(folder)
    assert newest is not None
    return read_state(newest, "finetune")


def assert_equal(one: Any, other: Any) -> None:
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        one, other = list(one.values()), list(other.values())
    if isinstance(one, list | tuple):
        for a, b in zip(one, other, strict=True):
            assert_equal(a, b)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other
