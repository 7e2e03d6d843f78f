"""The pool from Python: the controller's methods, with a time limit and with its own errors.

pool = PoolClient()
await pool.submit(WorkloadSpec(name="nightly", kind="finetune", model="fine"))
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayActorError, RayTaskError

from configs.errors import DeadlineExceeded, RecpoolError, Unavailable
from pool.policy.cost_summary import CostSummary
from pool.views import PoolReport, WorkloadReport
from pool.workload import WorkloadSpec

CONTROLLER = "pool-controller"
NAMESPACE = "serve"
"""Of the service's actors; Serve puts its own there."""
READ_TIMEOUT_S = 2.5
"""HAProxy gives up a page after 3 s, and a gateway should say why first."""
CHANGE_TIMEOUT_S = 0.9
"""HAProxy gives a POST to another gateway after 1.05 s; a change must not be made twice."""
NOT_CONNECTED = "not connected to Ray; call ray.init() with the address of the cluster that `recpool up` started"
NO_CONTROLLER = "no pool controller runs; start the service with a pool: `recpool up --profile pool`"
LOST = "the pool controller is gone or starts again; see with `recpool pool status` what it did, then ask again"


def find_controller() -> Any:
    """A handle to the controller's actor. Raises Unavailable when this process has no cluster, or that no controller.

    Blocks while Ray looks it up.
    """
    if not ray.is_initialized():  # to look for an actor would start a cluster of its own
        raise Unavailable(NOT_CONNECTED)
    try:
        return ray.get_actor(CONTROLLER, namespace=NAMESPACE)
    except ValueError:
        raise Unavailable(NO_CONTROLLER) from None


class PoolClient:
    """Asks the controller; one client serves any number of calls side by side.

    All methods raise Unavailable when no controller runs or it is lost meanwhile, DeadlineExceeded when it does not
    answer in time (whether it did as asked is then unknown), and what the controller itself raises.

    Args:
        find: looks the controller up, blocking; again after it was lost.
        read_timeout_s, change_timeout_s: limits on a call that only looks, and on one that changes something.
    """

    def __init__(
        self,
        find: Callable[[], Any] = find_controller,
        read_timeout_s: float = READ_TIMEOUT_S,
        change_timeout_s: float = CHANGE_TIMEOUT_S,
    ):
        self._find = find
        self._read_timeout_s = read_timeout_s
        self._change_timeout_s = change_timeout_s
        self._controller: Any = None

    async def report(self) -> PoolReport:
        return await self._ask(self._read_timeout_s, "report")

    async def costs(self) -> CostSummary:
        """Raises Conflict while a device has no price; names the setting."""
        return await self._ask(self._read_timeout_s, "costs")

    async def workloads(self) -> tuple[WorkloadReport, ...]:
        return await self._ask(self._read_timeout_s, "workloads")

    async def workload(self, name: str) -> WorkloadReport:
        """Raises NotFound listing the known names."""
        return await self._ask(self._read_timeout_s, "workload", name)

    async def submit(self, spec: WorkloadSpec) -> WorkloadReport:
        """Raises Conflict when a live workload has the name."""
        return await self._ask(self._change_timeout_s, "submit", spec)

    async def preempt(self, name: str, reason: str) -> WorkloadReport:
        """Let it checkpoint and give its place away. Raises NotFound, or Conflict when its phase does not allow it."""
        return await self._ask(self._change_timeout_s, "preempt", name, reason)

    async def resume(self, name: str) -> WorkloadReport:
        """Put it back into the queue. Raises as `preempt`."""
        return await self._ask(self._change_timeout_s, "resume", name)

    async def cancel(self, name: str, reason: str) -> WorkloadReport:
        """End it for good. Raises as `preempt`."""
        return await self._ask(self._change_timeout_s, "cancel", name, reason)

    async def migrate(self, name: str, device: str) -> WorkloadReport:
        """Move it to another device. Raises as `preempt`; NotFound of a device lists the known ones."""
        return await self._ask(self._change_timeout_s, "migrate", name, device)

    async def _ask(self, timeout_s: float, method: str, *arguments: Any) -> Any:
        try:
            async with asyncio.timeout(timeout_s):
                if self._controller is None:
                    self._controller = await asyncio.to_thread(self._find)
                return await getattr(self._controller, method).remote(*arguments)
        except TimeoutError:
            raise DeadlineExceeded(
                f"the pool controller did not answer within {timeout_s:g} s; it may still do as asked: "
                "see with `recpool pool status`, then ask again"
            ) from None
        except RayTaskError as error:
            if isinstance(error.cause, RecpoolError):
                raise error.cause from None
            raise
        except RayActorError as error:
            self._controller = None  # one that takes its place is another actor
            raise Unavailable(LOST) from error
