"""Settings of calls that the gateway makes of stages in other processes."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from configs.branch import Branch


class HandleSettings(Branch):
    """How calls of stages in other processes outlive a replica that dies, hangs or fails; each caller by itself."""

    tries: int = Field(default=3, ge=1, le=10, description="replicas one call may be given to, the first included")
    hedge_min_ms: float = Field(
        default=10, gt=0, le=1_000, description="a call is given to a second replica no sooner, however fast the stage"
    )
    hedge_max_ms: float = Field(
        default=50, gt=0, le=1_000, description="and no later; between the two, when it is late by what was measured"
    )
    hang_ms: float = Field(
        default=100,
        gt=0,
        le=150,
        description="a replica silent for longer gets no calls; a stage whose answers take long is given more",
    )
    faults: int = Field(
        default=3, ge=1, le=100, description="failures or lost races in a row after which a replica gets no calls"
    )
    trial_ms: float = Field(
        default=100,
        gt=0,
        le=10_000,
        description="pause until a replica left out is tried again with a copy of a call; doubles up to 2 s",
    )
    retry_share: float = Field(
        default=0.2, gt=0, le=1, description="extra attempts (retries, hedges, trials) for each call, in the long run"
    )
    retry_burst: int = Field(default=20, ge=1, le=1_000, description="extra attempts on top, saved up in quiet times")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.hedge_min_ms > self.hedge_max_ms:
            raise ValueError("hedge_min_ms: must not be more than hedge_max_ms")
        return self
