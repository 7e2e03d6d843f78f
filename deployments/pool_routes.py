"""The pool by HTTP: ``/v1/pool``. All work is the controller's; none of it is on the way of a recommendation."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Protocol

import orjson
from fastapi import APIRouter, Path, Response, Security
from fastapi.security import HTTPBearer
from pydantic import Field

from configs.branch import Branch
from configs.errors import Conflict, InvalidRequest, RecpoolError
from configs.settings import Settings
from deployments.cost_view import cost_metrics
from deployments.environment import Folders
from deployments.pool_client import PoolClient
from deployments.pool_metrics import METRICS_TYPE, metrics_text
from deployments.pool_requests import AdminRule, checked_route, refuse_other_methods
from deployments.pool_rules import PREFIX
from pool.policy.cost_summary import CostSummary
from pool.views import DeviceReport, PoolReport, WorkloadReport
from pool.workload import WORKLOAD_NAME, WorkloadSpec
from serving.schemas import ErrorReply

Name = Annotated[str, Path(description="of a workload", json_schema_extra={"pattern": WORKLOAD_NAME})]


class Reason(Branch):
    """Why; it stands beside the decision in every view."""

    reason: str = Field("asked for by HTTP", min_length=1, max_length=500, description="for people")


class Target(Branch):
    """Where to."""

    device: str = Field(min_length=1, max_length=200, description="id of a device, as GET /v1/pool/devices has it")


class Nothing(Branch):
    """An empty object."""


@dataclass(frozen=True)
class WorkloadList:
    workloads: tuple[WorkloadReport, ...]


@dataclass(frozen=True)
class DeviceList:
    devices: tuple[DeviceReport, ...]


class Pool(Protocol):
    """What the routes ask of the pool; `PoolClient` has it."""

    async def report(self) -> PoolReport: ...
    async def costs(self) -> CostSummary: ...
    async def workloads(self) -> tuple[WorkloadReport, ...]: ...
    async def workload(self, name: str) -> WorkloadReport: ...
    async def submit(self, spec: WorkloadSpec) -> WorkloadReport: ...
    async def preempt(self, name: str, reason: str) -> WorkloadReport: ...
    async def resume(self, name: str) -> WorkloadReport: ...
    async def cancel(self, name: str, reason: str) -> WorkloadReport: ...
    async def migrate(self, name: str, device: str) -> WorkloadReport: ...


_REFUSALS: dict[str, dict[int | str, dict[str, Any]]] = {
    "read": {
        503: {"model": ErrorReply, "description": "no pool controller runs, or it is being replaced"},
        504: {"model": ErrorReply, "description": "the controller did not answer in time"},
    },
    "name": {
        404: {"model": ErrorReply, "description": "no such workload or device; the message lists the known ones"},
        422: {"model": ErrorReply, "description": "a field is wrong; the message names it and the remedy"},
    },
    "cost": {409: {"model": ErrorReply, "description": "a device has no price; the message names the setting"}},
    "change": {
        400: {"model": ErrorReply, "description": "the body is not JSON"},
        401: {"model": ErrorReply, "description": "the token is missing or wrong"},
        409: {"model": ErrorReply, "description": "the workload's phase does not allow it, or its name is taken"},
        413: {"model": ErrorReply, "description": "the body is larger than the limit"},
        415: {"model": ErrorReply, "description": "the body is not said to be JSON"},
        422: {"model": ErrorReply, "description": "a field is wrong; the message names it and the remedy"},
        429: {"model": ErrorReply, "description": "too many calls wait; Retry-After says when to come back"},
    },
}


def pool_router(settings: Settings, pool: Pool | None = None) -> APIRouter:
    """The routes of a gateway replica.

    Args:
        pool: absent: the controller of the cluster that this process belongs to.
    """
    rule = AdminRule(settings.serving.host, Folders(settings.home).token)
    pool = pool or PoolClient()
    route = checked_route(rule, settings.serving.max_body_bytes, partial(_with_book, pool))
    router = APIRouter(prefix=PREFIX, tags=["pool"], route_class=route)
    _add_reads(router, pool)
    _add_changes(router, pool, security_of(rule))

    refuse_other_methods(router, "/workloads")
    return router


def _add_reads(router: APIRouter, pool: Pool) -> None:
    @router.get("", **_answers(PoolReport, "read"))
    async def report() -> Response:
        """Devices with their slices, workloads and the last decisions: what was leased beside what was metered."""
        return as_json(await pool.report())

    @router.get("/devices", **_answers(DeviceList, "read"))
    async def devices() -> Response:
        """Devices with their slices."""
        return as_json(DeviceList((await pool.report()).devices))

    @router.get("/metrics", response_model=None, responses={200: {"content": {"text/plain": {}}}, **_REFUSALS["read"]})
    async def metrics() -> Response:
        """The report as Prometheus metrics, with the costs where every device has a price."""
        text = metrics_text(await pool.report())
        with suppress(Conflict):
            text += cost_metrics(await pool.costs())
        return Response(text, headers={"content-type": METRICS_TYPE})

    @router.get("/cost", **_answers(CostSummary, "read", "cost"))
    async def cost() -> Response:
        """What the month costs: by workload, model, scene and team, and beside dedicated devices."""
        return as_json(await pool.costs())

    @router.get("/workloads", **_answers(WorkloadList, "read"))
    async def workloads() -> Response:
        """All workloads that the controller remembers."""
        return as_json(WorkloadList(await pool.workloads()))

    @router.get("/workloads/{name}", **_answers(WorkloadReport, "read", "name"))
    async def workload(name: Name) -> Response:
        """One workload: as it was declared, where it stands, and why."""
        return as_json(await pool.workload(name))


def _add_changes(router: APIRouter, pool: Pool, security: dict[str, Any]) -> None:
    @router.post("/workloads", status_code=201, **_answers(WorkloadReport, "read", "change", status=201), **security)
    async def submit(body: WorkloadSpec) -> Response:
        """Declare a workload; it is queued, and placed when there is room."""
        return as_json(await pool.submit(body), 201)

    change = {**_answers(WorkloadReport, "read", "name", "change"), **security}

    @router.post("/workloads/{name}/preempt", **change)
    async def preempt(name: Name, body: Reason) -> Response:
        """Let it checkpoint and give its slice away; it keeps its place in the queue."""
        return as_json(await pool.preempt(name, body.reason))

    @router.post("/workloads/{name}/resume", **change)
    async def resume(name: Name, body: Nothing) -> Response:
        """Let one that was preempted, parked or failed go on, from its checkpoint if it has one."""
        return as_json(await pool.resume(name))

    @router.post("/workloads/{name}/cancel", **change)
    async def cancel(name: Name, body: Reason) -> Response:
        """End it for good."""
        return as_json(await pool.cancel(name, body.reason))

    @router.post("/workloads/{name}/migrate", **change)
    async def migrate(name: Name, body: Target) -> Response:
        """Move it to another device, by its checkpoint."""
        return as_json(await pool.migrate(name, body.device))


def change_answers(model: type) -> dict[str, Any]:
    """What a route that changes something, and is not of one workload, is documented to answer."""
    return _answers(model, "read", "change")


def _answers(model: type, *refusals: str, status: int = 200) -> dict[str, Any]:
    told = {code: reply for group in refusals for code, reply in _REFUSALS[group].items()}
    return {"response_model": None, "responses": {status: {"model": model}, **told}}


def security_of(rule: AdminRule) -> dict[str, Any]:
    """That a token is needed, for the document of a service that other machines reach; `AdminRule` asks for it."""
    if not rule.needs_token:
        return {}
    return {"dependencies": [Security(HTTPBearer(description="the token of the service's home", auto_error=False))]}


async def _with_book(pool: Pool, model: type, refused: InvalidRequest) -> InvalidRequest:
    """A refusal of a workload with the book, as those of the controller have it; as it was, where none answers."""
    if model is not WorkloadSpec:
        return refused
    try:
        book = (await pool.report()).book
    except RecpoolError:
        return refused
    return InvalidRequest(f"{refused.message}; {book}", *refused.args[1:]) if book else refused


def as_json(value: Any, status: int = 200) -> Response:
    """NaN and infinity become null."""
    body = orjson.dumps(value, default=_plain, option=orjson.OPT_SERIALIZE_NUMPY)
    return Response(body, status, media_type="application/json")


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return dict(value)
    raise TypeError(f"{type(value).__name__} is not JSON")
