"""Settings of autoscaling: which deployments it drives, what a replica of each can do, and how it decides."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from configs.branch import Branch

ScaledName = Literal["gateway", "recall", "coarse", "fine"]


class CapacityPoint(Branch):
    """One measurement of one replica."""

    rate_per_s: float = Field(gt=0, le=1e6, description="requests a second that it was asked")
    p99_ms: float = Field(gt=0, le=1e6, description="latency at that rate, as callers see it")


class ScaledDeployment(Branch):
    """One deployment that is driven: its bounds, and what was measured of a replica of it."""

    min_replicas: int = Field(default=1, ge=1, le=10_000, description="never fewer; two, where one may be lost")
    max_replicas: int = Field(ge=1, le=10_000, description="never more, whatever comes")
    start_s: float = Field(
        gt=0, le=86_400, description="seconds from the decision to the first answer of a new replica, as measured"
    )
    curve: tuple[CapacityPoint, ...] = Field(
        min_length=1, description="p99 of one replica at rising rates, up to what it can answer at most"
    )

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas: {self.min_replicas} is more than max_replicas, {self.max_replicas}")
        rates = [point.rate_per_s for point in self.curve]
        if sorted(set(rates)) != rates:
            raise ValueError(f"curve: rates {rates} must rise; state each measured rate once")
        return self


class AutoscaleSettings(Branch):
    """How many replicas there are follows demand. With no deployments named, as the plan has them."""

    deployments: dict[ScaledName, ScaledDeployment] = Field(
        default_factory=dict, description="that are driven; absent: none, and replica counts stay as planned"
    )
    interval_s: float = Field(default=1, gt=0, le=600, description="seconds between two decisions")
    slo_ms: float = Field(default=100, gt=0, le=60_000, description="p99 that a replica must keep")
    quantile: float = Field(
        default=0.9, gt=0.5, lt=1, description="of the forecast that is provided for; higher misses less and costs more"
    )
    hot_quantile: float = Field(
        default=0.99, gt=0.5, lt=1, description="the same while requests crowd on fewer things than usual"
    )
    headroom: float = Field(
        default=1.0, ge=1, le=10, description="times the forecast that is provided for, for what no past shows"
    )
    drain_s: float = Field(
        default=10, gt=0, le=3_600, description="seconds in which what will have queued up is to be worked off"
    )
    longest_wait_s: float = Field(
        default=0.5,
        gt=0,
        le=3_600,
        description="that a request waits in a queue before it is refused, so that no longer queue is provided for",
    )
    fast_s: float = Field(
        default=6, gt=0, le=600, description="seconds over which the present rate is measured, for sudden crowds"
    )
    panic_ratio: float = Field(
        default=2, gt=1, le=100, description="present rate over what running replicas sustain, from which it is a panic"
    )
    panic_s: float = Field(
        default=60, gt=0, le=86_400, description="seconds from the last moment of panic in which no replica leaves"
    )
    down_after_s: float = Field(
        default=60, ge=0, le=86_400, description="a replica leaves when it was not needed for so long"
    )
    late_share: float = Field(
        default=0.01,
        gt=0,
        lt=1,
        description="of requests, that may be late or refused; more, though replicas should do, and one is added",
    )

    @model_validator(mode="after")
    def _reachable(self) -> Self:
        for name, deployment in self.deployments.items():
            point = deployment.curve[0]
            if point.p99_ms > self.slo_ms:
                raise ValueError(
                    f"slo_ms: {self.slo_ms:g} is kept at no measured rate of deployments.{name}.curve "
                    f"(p99 {point.p99_ms:g} ms at {point.rate_per_s:g}/s); allow more, or measure at lower rates"
                )
        if self.hot_quantile < self.quantile:
            raise ValueError("hot_quantile: must not be below quantile")
        return self
