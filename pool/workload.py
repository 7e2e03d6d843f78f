"""Workloads: what is declared once and scheduled on slices of devices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import orjson
from pydantic import Field, JsonValue, field_validator, model_validator
from pydantic_core import PydanticCustomError

from configs.branch import Branch
from configs.plan_settings import Tier
from pool.device import CAPACITY_MILLI

WorkloadKind = Literal["inference", "warmup", "evaluate", "finetune"]
WorkloadPriority = Literal["guaranteed", "burstable", "best_effort"]

PRIORITY_OF: dict[WorkloadKind, WorkloadPriority] = {
    "inference": "guaranteed",
    "warmup": "burstable",
    "evaluate": "burstable",
    "finetune": "best_effort",
}
RANK: dict[WorkloadPriority, int] = {"guaranteed": 0, "burstable": 1, "best_effort": 2}
"""Lower gives way later."""

WORKLOAD_NAME = r"^[a-z0-9][a-z0-9._-]{0,62}$"
WorkloadName = Annotated[
    str,
    Field(
        pattern=WORKLOAD_NAME,
        description="unique in the pool; lower case letters, digits, dot, dash and underscore, as it also names files",
    ),
]


class WorkloadAttributes(Branch):
    """How the model of a workload is to be run; what changes its cost and what it may be placed on."""

    precision: Literal["fp32", "fp16", "int8"] = Field(default="fp32", description="of the weights")
    pruning: float = Field(default=0.0, ge=0.0, lt=1.0, description="share of the weights removed")
    shards: int = Field(default=1, ge=1, le=64, description="devices that one copy of the model is split over")
    batch_rows: int = Field(default=1, ge=1, le=65_536, description="rows in a batch, as expected")
    parameters: int | None = Field(
        default=None, ge=0, le=10**13, description="of a model whose graph is not in a release; absent: by its graph"
    )
    transformer: bool | None = Field(
        default=None, description="whether that model has attention; absent: by its graph, and without one not"
    )


class WorkloadSpec(Branch):
    """A schedulable unit of compute, as its owner declares it."""

    name: WorkloadName
    kind: WorkloadKind
    model: str = Field(min_length=1, max_length=200, description="what it computes: recall, coarse, fine, or any model")
    version: str | None = Field(default=None, max_length=100, description="of the model; absent: the champion")
    priority: WorkloadPriority | None = Field(default=None, description="absent: by kind")
    min_milli: int = Field(
        default=100, ge=1, le=CAPACITY_MILLI, description="thousandths of a device it is sure of: its lease"
    )
    desired_milli: int | None = Field(
        default=None,
        ge=1,
        le=CAPACITY_MILLI,
        description="thousandths it can use when some are free; absent: min_milli, and the whole device for "
        "guaranteed work with an SLO, whose share grows only while its p99 comes near to that",
    )
    memory_bytes: int = Field(default=0, ge=0, le=1 << 45, description="of the device's memory, held with the lease")
    slo_ms: float | None = Field(default=None, gt=0, le=60_000, description="latency its p99 must stay below")
    tier: tuple[Tier, ...] = Field(default=("cpu",), min_length=1, description="kinds of device, wanted first")
    replicas: int = Field(default=1, ge=1, le=1_000, description="copies; those of one workload avoid each other")
    team: str = Field(default="", max_length=100, description="who pays")
    attributes: WorkloadAttributes = WorkloadAttributes()
    options: dict[str, JsonValue] = Field(
        default_factory=dict,
        description="what its kind of work can be told besides; checked when the work is made. Numbers are finite, "
        "integers of 64 bits, and nothing lies deeper than a hundred levels",
    )

    @model_validator(mode="after")
    def _at_least_the_minimum(self) -> WorkloadSpec:
        if self.desired_milli is not None and self.desired_milli < self.min_milli:
            raise ValueError(f"desired_milli: {self.desired_milli} is below min_milli {self.min_milli}")
        return self

    @field_validator("options")
    @classmethod
    def _exact(cls, options: dict[str, JsonValue]) -> dict[str, JsonValue]:
        """Refuse what could not be told again as it was, by whichever way it came."""
        try:
            is_exact = orjson.loads(orjson.dumps(options)) == options
        except (orjson.JSONEncodeError, RecursionError):
            is_exact = False
        if not is_exact:
            raise PydanticCustomError(
                "not_exact",
                "holds NaN, infinity, an integer of more than 64 bits or more than a hundred levels; send text instead",
            )
        return options

    @property
    def rank(self) -> WorkloadPriority:
        """Its priority, stated or by kind."""
        return self.priority or PRIORITY_OF[self.kind]

    @property
    def stands(self) -> bool:
        """Whether it stays when its work is done, with what it has loaded and without a share of the device."""
        return self.kind == "warmup" and self.options.get("stand") is True

    @property
    def wanted_milli(self) -> int:
        """Thousandths it can use, as stated, or as far as its SLO may ask for."""
        may_grow = self.rank == "guaranteed" and self.slo_ms is not None
        return self.desired_milli or (CAPACITY_MILLI if may_grow else self.min_milli)


WorkloadPhase = Literal[
    "queued", "starting", "running", "preempted", "migrating", "succeeded", "failed", "cancelled", "parked"
]
"""``parked``: it crashed again and again and waits for a person. ``preempted``: it keeps its checkpoint and its
place in the queue, and holds no lease."""

NEXT_PHASES: dict[WorkloadPhase, tuple[WorkloadPhase, ...]] = {
    "queued": ("starting", "cancelled", "parked"),
    "starting": ("running", "queued", "failed", "cancelled", "parked"),
    "running": ("preempted", "migrating", "queued", "succeeded", "failed", "cancelled", "parked"),
    "preempted": ("queued", "cancelled"),
    "migrating": ("starting", "queued", "failed", "cancelled", "parked"),
    "succeeded": (),
    "failed": ("queued",),
    "cancelled": (),
    "parked": ("queued", "cancelled"),
}


@dataclass(frozen=True)
class WorkloadState:
    """Where a workload stands.

    Attributes:
        reason: of the last change, for people.
        device: it runs on, or ran on last.
        restarts: times it came back after a crash, within the breaker's window.
    """

    spec: WorkloadSpec
    phase: WorkloadPhase = "queued"
    reason: str = ""
    device: str | None = None
    restarts: int = 0
