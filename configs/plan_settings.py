"""The branch of the settings that says where the gateway and the stages run."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator

from configs.branch import Branch

StageName = Literal["recall", "coarse", "fine"]
STAGES: tuple[StageName, ...] = ("recall", "coarse", "fine")
"""Stages that can be called over a handle; features and post-processing stay in the gateway."""

Tier = Literal["cpu", "gpu", "npu"]
Tiers = Annotated[tuple[Tier, ...], BeforeValidator(lambda stated: (stated,) if isinstance(stated, str) else stated)]
"""One tier or a list of them."""


class DeploymentPlan(Branch):
    """Where a deployment's replicas run and how much each gets."""

    tier: Tiers = Field(default=("cpu",), min_length=1, description="wanted first, fallbacks after")
    replicas: int | None = Field(
        default=None,
        ge=1,
        le=1_000,
        description="copies; absent: two, so that one can be lost, and of the gateway up to eight, one a core",
    )
    share_milli: int = Field(
        default=100,
        ge=1,
        le=256_000,
        description="thousandths of one device a replica holds; more than 1000 are several cores, on the cpu tier only",
    )

    @field_validator("share_milli")
    @classmethod
    def _one_accelerator(cls, share_milli: int, others: ValidationInfo) -> int:
        if share_milli > 1_000 and set(others.data.get("tier", ())) - {"cpu"}:
            raise ValueError("at most 1000, one whole device, where the tier list has gpu or npu")
        return share_milli


class GatewayPlan(DeploymentPlan):
    """Where the gateway runs, how many copies stand by for it, and how it is kept warm."""

    shadows: int = Field(
        default=0,
        ge=0,
        le=64,
        description="warm copies beyond `replicas` that get no calls until one of those is lost; they need the pool's "
        "controller to be told apart, and serve like the others without it",
    )
    memory_mib: int | None = Field(
        default=None,
        ge=1,
        le=1_048_576,
        description="of its device's memory that the lease of each copy holds, a shadow's too; absent: none is booked",
    )
    warm: bool = Field(
        default=True,
        description="answer requests of its own before the first caller's, at every size of batch; where all stages "
        "are its own",
    )
    keep_warm_s: float = Field(
        default=2, gt=0, le=3_600, description="seconds between two requests that a shadow asks itself"
    )


class StagePlan(DeploymentPlan):
    """Where one stage runs and how much it gets."""

    fused: bool | None = Field(
        default=None,
        description="run inside the gateway's replica, or (false) in a deployment of its own behind a handle; absent: "
        "fused when it lands on the gateway's tier",
    )


class PlanSettings(Branch):
    """Replicas of the gateway and the place of every stage."""

    gateway: GatewayPlan = GatewayPlan()
    stages: dict[StageName, StagePlan] = Field(default_factory=lambda: {stage: StagePlan() for stage in STAGES})
