"""The pool of a running service as a benchmark sees it from outside: what it reports, and who computes on a device."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import psutil
import ray

from benchmarks.live import Live
from configs.errors import RecpoolError
from deployments.cluster import Cluster
from deployments.gates import gate_folder
from deployments.pool_ask import WORKLOADS, change, look, parsed
from deployments.pool_client import NAMESPACE
from deployments.pool_rules import PREFIX
from pool.gate.readings import SlotView
from pool.gate.segment import GateSegment
from pool.runtime.actors import HOST
from pool.runtime.messages import HostStatus
from pool.views import PoolReport

CONTROLLER, AGENT, HOST_PROCESS = "ray::ControllerActor", "ray::NodeAgent", "ray::WorkloadHost"
"""How the titles of the pool's processes begin."""
READY_S = 180.0
POLL_S = 0.1
ANSWER_S = 30.0
ENDLESS = {"model": "release", "tier": ["gpu"], "min_milli": 300, "options": {"epochs": 1_000}}
"""A fine-tune that outlasts any benchmark."""


@dataclass(frozen=True)
class LivePool:
    """What `Live` is for the service."""

    live: Live

    def report(self) -> PoolReport | None:
        """None while nobody answers, as when the controller is being replaced."""
        try:
            return parsed(PoolReport, look(self.live.settings, PREFIX))
        except RecpoolError:
            return None

    def submit(self, name: str, kind: str, **more: Any) -> None:
        change(self.live.settings, WORKLOADS, {"name": name, "kind": kind, **more})

    def phase(self, name: str) -> str | None:
        report = self.report()
        return next((each.phase for each in report.workloads if each.name == name), None) if report else None

    def members(self, device: str) -> tuple[SlotView, ...]:
        """Who computes on a device, as its gate says, not the controller; those that have died are left out."""
        segment = GateSegment.open(gate_folder(self.live.settings), device)
        try:
            return tuple(slot for slot in segment.read().slots if psutil.pid_exists(slot.pid))
        finally:
            segment.close()

    @property
    def journal(self) -> Path:
        return self.live.home / "run" / "pool"

    @property
    def devices(self) -> tuple[str, ...]:
        return tuple(device.id for device in self.live.settings.pool.devices)


def await_truth(truth: Callable[[], Any], what: str, within_s: float = READY_S) -> Any:
    """Ask until it is so. Raises TimeoutError naming what did not come about."""
    end_s = time.monotonic() + within_s
    while not (found := truth()):
        if time.monotonic() > end_s:
            raise TimeoutError(f"{what} did not come about within {within_s:g} s")
        time.sleep(POLL_S)
    return found


@contextmanager
def connected(live: Live) -> Iterator[Executor]:
    """A process that is part of the service's cluster, and calls functions there.

    One of its own, since Ray reads how a cluster wants to be spoken to when it is imported.
    """
    cluster = Cluster(live.home)
    record = cluster.record()
    assert record is not None
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(cluster.folders.token)}
    with ProcessPoolExecutor(1, get_context("spawn"), _join, (record.address,)) as executor:
        yield executor


def _join(address: str) -> None:
    ray.init(address, namespace=NAMESPACE, log_to_driver=False, configure_logging=False)


def hosts() -> tuple[HostStatus, ...]:
    """What every host says of itself; to be called in the process of `connected`."""
    rows: list[Any] = ray.util.list_named_actors(all_namespaces=True)
    names = [row["name"] for row in rows if row["name"].startswith(HOST)]
    asked = [ray.get_actor(name, namespace=NAMESPACE).status.remote() for name in names]
    return tuple(ray.get(asked, timeout=ANSWER_S))
