"""Serve's request router for stages: the caller says which replica, see `deployments.handles`.

Serve's own routers ask replicas for their queue lengths and go on asking until one answers, so one that
hangs holds up the calls routed to it. Here a call goes where its caller's `ReplicaHealth` says, at once; a
replica that does not take it is the caller's to judge, inside the caller's budget for retries.

Serve pickles a router's module by value, so what has an identity (the context variable) stays in another
module and is reached through it.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ray.serve.request_router import PendingRequest, ReplicaID, RequestRouter, RunningReplica

from deployments import handles


class StageRouter(RequestRouter):
    """Routes to the replica that the call's `handles.Placing` names, and evicts one as soon as it is known dead."""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self._dead: set[ReplicaID] = set()
        self._inquiries: dict[ReplicaID, asyncio.Task[Any]] = {}

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """All of them: for calls that do not come from a `RemoteStage`."""
        return [candidate_replicas]

    async def _choose_replica_for_request(
        self, pending_request: PendingRequest, *, is_retry: bool = False
    ) -> RunningReplica:
        """The replica for this call; waits only while there is none at all.

        Raises:
            handles.NotTaken: no replica is left to try, or the chosen one did not take the call. Serve
                would choose again by itself; it is the caller's decision.
        """
        placing = handles.PLACING.get()
        if placing is None:
            return await super()._choose_replica_for_request(pending_request, is_retry=is_retry)
        if is_retry:
            raise handles.NotTaken(f"replica {placing.replica} did not take the call")
        while not self._replicas:
            self._replicas_updated_event.clear()
            await self._replicas_updated_event.wait()
        present = {each.replica_id.unique_id: each for each in self._replicas_list}
        name = placing.choose(present)
        if name is None:
            raise handles.NotTaken("every replica was tried")
        placing.actor_id = present[name].actor_id.hex()
        return present[name]

    def update_replicas(self, replicas: list[RunningReplica]) -> None:
        """Take the controller's word for who is there, except for those known to be dead: it learns that later.

        Nor is it believed that nobody is, while somebody was: a controller that comes back says so before it has found
        them. Those that are gone are found out by the next call.
        """
        if not replicas and self._replicas:
            return
        self._dead &= {each.replica_id for each in replicas}
        super().update_replicas([each for each in replicas if each.replica_id not in self._dead])

    def on_replica_actor_died(self, replica_id: ReplicaID) -> None:
        self._dead.add(replica_id)
        super().on_replica_actor_died(replica_id)

    def on_replica_actor_unavailable(self, replica_id: ReplicaID) -> None:
        """A connection broke: ask Ray, beside the calls, whether the replica is dead or was only out of reach."""
        super().on_replica_actor_unavailable(replica_id)
        replica = self._replicas.get(replica_id)
        if replica is not None and replica_id not in self._inquiries:
            inquiry = self._event_loop.create_task(self._probe_queue_lens([replica], 0))
            self._inquiries[replica_id] = inquiry
            inquiry.add_done_callback(lambda _: self._inquiries.pop(replica_id, None))
