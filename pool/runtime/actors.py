"""The pool's actors on Ray: the controller as one, and agents and hosts as it sees them.

All are detached and named, so that they outlive whoever started them and are found again:
``pool-agent-<node id>``, ``pool-host-<lease id>``, and the controller under the name it was started with.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from configs.errors import Conflict
from pool.runtime.agent import NodeAgent
from pool.runtime.host import WorkloadHost
from pool.runtime.inventory import resource_of
from pool.runtime.messages import (
    Cut,
    GateOrder,
    HostOrder,
    HostStatus,
    NodeFound,
    NodeReading,
    Order,
    Polled,
    RayNode,
    Site,
    Survivors,
    Verb,
)
from pool.runtime.state import Fenced

log = logging.getLogger("recpool.pool")
AGENT, HOST = "pool-agent-", "pool-host-"
AGENT_THREADS, HOST_THREADS = 4, 4
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
VISIBLE = {"gpu": "CUDA_VISIBLE_DEVICES", "npu": "ASCEND_RT_VISIBLE_DEVICES"}
HEAD = "node:__internal_head__"
"""Ray's resource that its head node alone has."""


@dataclass
class _Watched:
    """An actor that is polled; ``asked`` is the answer that is outstanding."""

    handle: Any
    method: str
    asked: Any = None


@dataclass
class _News:
    statuses: list[HostStatus] = field(default_factory=list)
    lost: dict[str, str] = field(default_factory=dict)
    readings: dict[str, NodeReading] = field(default_factory=dict)


class RayGround:
    """`takeover.Ground` on the Ray cluster that this process is part of; several threads may use it."""

    def __init__(self, namespace: str):
        self._namespace = namespace
        self._lock = threading.RLock()
        self._hosts: dict[str, _Watched] = {}
        self._agents: dict[str, _Watched] = {}
        self._resources: dict[str, Mapping[str, float]] = {}
        self._told: list[Any] = []
        self._refused: str | None = None

    # --- what waits

    def nodes(self) -> tuple[RayNode, ...]:
        found = tuple(
            RayNode(row["NodeID"], row["NodeName"], bool(row["Alive"]), HEAD in row["Resources"], row["Resources"])
            for row in ray.nodes()
        )
        self._resources |= {node.id: node.resources for node in found if node.is_alive}
        return found

    def discover(self, node_ids: Sequence[str], gates: Path, wait_s: float) -> Mapping[str, NodeFound]:
        with self._lock:
            for node_id in node_ids:
                if node_id not in self._agents:
                    self._agents[node_id] = _Watched(self._agent(node_id), "read")
            asked = {node_id: self._agents[node_id].handle.discover.remote(gates) for node_id in node_ids}
        return {node_id: answer for node_id, answer in _answers(asked, wait_s) if isinstance(answer, NodeFound)}

    def open_gates(self, orders: Mapping[str, GateOrder], wait_s: float) -> None:
        with self._lock:
            asked = {node: self._agents[node].handle.open.remote(order) for node, order in orders.items()}
        _refuse_if_fenced(_answers(asked, wait_s))

    def survivors(self, wait_s: float) -> Survivors:
        rows: list[Any] = ray.util.list_named_actors(all_namespaces=True)
        for row in rows:
            if row["namespace"] == self._namespace and row["name"].startswith(HOST):
                self._find(row["name"].removeprefix(HOST))
        return self._ask_hosts("status", (), wait_s)

    def adopt(self, epoch: int, wait_s: float) -> Survivors:
        return self._ask_hosts("adopt_epoch", (Order(epoch, "a controller takes over"),), wait_s)

    # --- what does not

    def start(self, order: HostOrder, site: Site) -> None:
        name = HOST + order.lease.id
        resource = resource_of(order.device.id)
        # A node that was not started with the device's resource has no admission by Ray: the ledger's is enough.
        has_it = resource in self._resources.get(site.node_id, {})
        # One that is to stand by gives its share back while it runs, which Ray cannot be told.
        counts = has_it and order.lease.milli > 0 and not order.spec.stands
        needs = {resource: order.lease.milli / 1000} if counts else {}
        variables: dict[str, str] = dict.fromkeys(THREAD_VARIABLES, str(max(1, len(order.device.cores))))
        if site.index is not None:
            variables[VISIBLE[order.device.kind]] = str(site.index)
        made = _remote(WorkloadHost).options(
            name=name,
            namespace=self._namespace,
            lifetime="detached",
            num_cpus=0,
            resources=needs,
            max_restarts=0,
            max_concurrency=HOST_THREADS,
            scheduling_strategy=NodeAffinitySchedulingStrategy(site.node_id, soft=False),
            runtime_env={"env_vars": variables},
        )
        with self._lock:
            self._hosts[order.lease.id] = _Watched(made.remote(order), "status")

    def tell(self, lease_id: str, verb: Verb, order: Order) -> None:
        with self._lock:
            watched = self._hosts.get(lease_id)
            if watched is not None:
                self._told.append(getattr(watched.handle, verb).remote(order))

    def cut(self, node_id: str, cut: Cut) -> None:
        with self._lock:
            watched = self._agents.get(node_id)
            if watched is not None:
                self._told.append(watched.handle.cut.remote(cut))

    def kill(self, lease_id: str) -> None:
        with self._lock:
            watched = self._hosts.pop(lease_id, None)
        if watched is not None:
            ray.kill(watched.handle)

    def poll(self, wait_s: float) -> Polled:
        with self._lock:
            watched = {("host", key): each for key, each in self._hosts.items()}
            watched |= {("agent", key): each for key, each in self._agents.items()}
            for each in watched.values():
                if each.asked is None:
                    each.asked = getattr(each.handle, each.method).remote()
            asked, told = {key: each.asked for key, each in watched.items()}, list(self._told)
        news = _News()
        for (kind, key), answer in _answers(asked, wait_s):
            watched[kind, key].asked = None
            self._take(news, kind, key, answer)
        self._hear(told)
        return Polled(tuple(news.statuses), news.lost, news.readings, self._refused)

    def _take(self, news: _News, kind: str, key: str, answer: Any) -> None:
        if isinstance(answer, HostStatus):
            news.statuses.append(answer)
        elif isinstance(answer, NodeReading):
            news.readings[key] = answer
        elif kind == "host" and isinstance(answer, RayActorError) and not isinstance(answer, ActorUnavailableError):
            news.lost[key] = str(answer).splitlines()[0]
            with self._lock:
                self._hosts.pop(key, None)
        elif isinstance(answer, RayTaskError):
            log.error("%s %s: %s", kind, key, answer)

    def _hear(self, told: list[Any]) -> None:
        """Notice who refuses to obey; orders to those that are gone come to nothing, as `poll` tells."""
        ready, _ = ray.wait(told, num_returns=len(told), timeout=0) if told else ([], [])
        for _, answer in _answers({each: each for each in ready}, 0):
            if isinstance(answer, Conflict):
                self._refused = answer.message
        with self._lock:
            self._told = [each for each in self._told if each not in set(ready)]

    def _ask_hosts(self, method: str, arguments: tuple[Any, ...], wait_s: float) -> Survivors:
        with self._lock:
            asked = {key: getattr(each.handle, method).remote(*arguments) for key, each in self._hosts.items()}
        answers = dict(_answers(asked, wait_s))
        _refuse_if_fenced(answers.items())
        gone = [key for key, answer in answers.items() if isinstance(answer, RayActorError)]
        for key in gone:
            self._hosts.pop(key, None)
        statuses = tuple(answer for answer in answers.values() if isinstance(answer, HostStatus))
        return Survivors(statuses, tuple(key for key in asked if key not in answers))

    def _find(self, lease_id: str) -> None:
        with contextlib.suppress(ValueError):  # it has ended meanwhile
            self._hosts[lease_id] = _Watched(ray.get_actor(HOST + lease_id, namespace=self._namespace), "status")

    def _agent(self, node_id: str) -> Any:
        made = _remote(NodeAgent).options(
            name=AGENT + node_id,
            namespace=self._namespace,
            lifetime="detached",
            get_if_exists=True,
            num_cpus=0,
            max_restarts=-1,
            max_concurrency=AGENT_THREADS,
            scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
        )
        return made.remote()


def _remote(kind: type) -> Any:
    return ray.remote(kind)


def _answers(asked: Mapping[Any, Any], wait_s: float) -> Iterable[tuple[Any, Any]]:
    """Those that come within the time, by key; an error counts as an answer, unwrapped where an actor raised it."""
    if not asked:
        return []
    ready, _ = ray.wait(list(asked.values()), num_returns=len(asked), timeout=wait_s)
    come, keys = set(ready), {ref: key for key, ref in asked.items()}
    return [(keys[ref], _answer(ref)) for ref in come]


def _answer(ref: Any) -> Any:
    try:
        return ray.get(ref, timeout=1.0)
    except RayTaskError as error:
        return error.cause if isinstance(error.cause, Conflict) else error
    except (RayActorError, GetTimeoutError) as error:
        return error


def _refuse_if_fenced(answers: Iterable[tuple[Any, Any]]) -> None:
    for key, answer in answers:
        if isinstance(answer, Conflict):
            raise Fenced(answer.message)
        if isinstance(answer, Exception):
            log.error("%s: %s", key, answer)
