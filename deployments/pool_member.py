"""A serving replica as a member of the pool: it claims its slice, and computes behind the gate of its device.

All of this happens on a thread of its own. Requests never wait for it, and serving goes on without a pool, without
a controller, and without a gate.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

import numpy as np
import ray
from ray import serve

from configs.errors import RecpoolError
from configs.settings import Settings
from deployments.pool_client import find_controller
from pool.gate.cpu import enter_device
from pool.gate.meters import Meter, ThreadMeter
from pool.gate.segment import GateSegment
from pool.gate.slot import GateSlot
from pool.policy.latency import BatchTime
from pool.runtime.messages import Claim, Claimed
from pool.workload import WorkloadPriority

log = logging.getLogger("recpool.pool")
CLAIM_TIMEOUT_S = 10.0
P99_OVER_S = 5.0
LEAST_REQUESTS = 20
"""Below so many, a p99 says little more than that one request was slow."""
PRIORITY: WorkloadPriority = "guaranteed"


class Serving(Protocol):
    """What a member needs of the service; `serving.service.Service` has it."""

    def pass_gate(self, gate: Any) -> None: ...

    def latencies_ms(self, over_s: float) -> list[float]: ...

    @property
    def queue(self) -> int: ...

    def batch_times(self) -> tuple[BatchTime, ...]: ...


class PoolMember:
    """Keeps one replica's claim.

    Args:
        copies: replicas that are to serve; those beyond stand by. 0: all serve.
        ask: the claim to the controller, and back what it grants; blocks.
        version: of the release that is served.
        scenes: requests answered since the start, by scene.
        part: of the replica that it is for, where each has a slice of its own.
        enter: puts what computes on the device; absent: the whole process goes there.
    """

    def __init__(
        self,
        settings: Settings,
        serving: Serving,
        workload: str,
        copies: int = 0,
        ask: Callable[[Claim], Claimed] | None = None,
        version: Callable[[], str | None] = lambda: None,
        scenes: Callable[[], Mapping[str, float]] = dict,
        part: str = "",
        enter: Callable[[Claimed], Meter] | None = None,
    ):
        self._settings, self._serving, self._workload, self._copies = settings, serving, workload, copies
        self._ask, self._version, self._scenes = ask or _ask_controller, version, scenes
        self._part, self._put = part, enter or self._enter
        self._holder, self._node_id, self._replica = "", "", ""
        self._claimed: Claimed | None = None
        self._slot: GateSlot | None = None
        self._old: list[GateSlot] = []
        self._ended, self._leaves = threading.Event(), False
        self._said = ""

    @property
    def stands_by(self) -> bool:
        """Whether it is a shadow, as far as it has been told."""
        return self._claimed is not None and self._claimed.shadow

    def start(self) -> None:
        """Begin on a thread of its own, in a replica that is ready to serve: from here on it may be given calls."""
        context = ray.get_runtime_context()
        self._holder, self._node_id = f"{context.get_actor_id()}{self._part}", context.get_node_id()
        self._replica = serve.get_replica_context().replica_id.unique_id
        threading.Thread(target=self._run, name="pool-member", daemon=True).start()

    def stop(self) -> None:
        """Renew no more; the slice lapses, and the gate's slot goes with the process."""
        self._ended.set()

    def leave(self) -> None:
        """Give slice and slot back, for what ends before its process does; the device's work must have ended."""
        self._leaves = True
        self.stop()

    def renew(self) -> float:
        """Claim or renew, and join the gate of the device; returns the seconds until the next time.

        Raises:
            RecpoolError: there is no controller, or no slice; or the gate cannot be joined. Serving goes on.
        """
        claimed = self._ask(self._claim())
        for slot in self._old:  # batches that began there have ended by now
            slot.leave()
        self._old = []
        if self._slot is None or self._claimed is None or claimed.device != self._claimed.device:
            self._join(claimed)
        if self._claimed is None or self._claimed.shadow != claimed.shadow:
            log.info("%s %s", self._workload, "stands by" if claimed.shadow else "serves")
        self._claimed = claimed
        return claimed.renew_s

    def _claim(self) -> Claim:
        gateway, runtime = self._settings.plan.gateway, self._settings.pool.runtime
        took_ms = self._serving.latencies_ms(P99_OVER_S)
        return Claim(
            holder=self._holder,
            workload=self._workload,
            node_id=self._node_id,
            tier=gateway.tier[0],
            core_milli=gateway.share_milli,
            slo_ms=runtime.serving_slo_ms,
            version=self._version(),
            memory_bytes=(gateway.memory_mib or 0) << 20,
            lease=self._claimed.lease if self._claimed else None,
            p99_ms=float(np.percentile(took_ms, 99)) if len(took_ms) >= LEAST_REQUESTS else None,
            queue=self._serving.queue,
            batches=self._serving.batch_times(),
            shadow=self.stands_by,
            copies=self._copies,
            replica=self._replica,
            pid=os.getpid(),
            scenes=self._scenes(),
        )

    def _join(self, claimed: Claimed) -> None:
        segment = GateSegment.open(claimed.gate_folder, claimed.device.id)
        slot = segment.join(self._workload, PRIORITY, claimed.lease.milli, self._put(claimed))
        self._serving.pass_gate(slot)
        if self._slot is not None:
            self._old.append(self._slot)
        self._slot = slot
        log.info("%s computes on %s as %s", self._workload, claimed.device.id, claimed.lease)

    def _enter(self, claimed: Claimed) -> Meter:
        """Put this process on the device's cores; an accelerator is entered by the models on it."""
        if not claimed.device.cores:
            return ThreadMeter()
        return enter_device(claimed.device, PRIORITY, self._settings.ranking.threads).meter

    def _run(self) -> None:
        wait_s = 0.0
        while not self._ended.wait(wait_s):
            wait_s = self._settings.pool.runtime.renew_s
            try:
                wait_s = self.renew()
                self._say("")
            except RecpoolError as error:
                self._say(error.message)
            except Exception as error:  # Ray's, while a controller starts again; and whatever a thread must survive
                self._say(f"{type(error).__name__}: {error}")
        if self._leaves:
            self._give_back()

    def _give_back(self) -> None:
        self._serving.pass_gate(None)
        for slot in filter(None, (*self._old, self._slot)):
            slot.leave()
        with suppress(Exception):  # without a controller the slice lapses
            ray.get(find_controller().unclaim.remote(self._holder), timeout=CLAIM_TIMEOUT_S)

    def _say(self, why: str) -> None:
        """The same trouble is told once."""
        if why and why != self._said:
            log.warning("%s serves without the pool: %s", self._workload, why)
        self._said = why


def _ask_controller(claim: Claim) -> Claimed:
    return ray.get(find_controller().claim.remote(claim), timeout=CLAIM_TIMEOUT_S)
