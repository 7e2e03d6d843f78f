"""Settings of the service under overload."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from configs.branch import Branch


class OverloadSettings(Branch):
    """What gives when more is asked than can be answered: who is refused, and how much quality the others get."""

    max_wait_ms: float = Field(
        default=250,
        gt=0,
        le=10_000,
        description="a request that would be answered later than this is refused at once, whatever its deadline",
    )
    urgent_batch_ms: float = Field(
        default=10,
        gt=0,
        le=1_000,
        description="longest batch while high-priority requests come in, as each of them waits for the one that runs",
    )
    urgent_memory_s: float = Field(
        default=1,
        ge=0,
        le=60,
        description="seconds after a high-priority request during which batches stay that short",
    )
    shrink_above_ms: float = Field(
        default=50,
        gt=0,
        le=10_000,
        description="requests are given less quality while some wait longer than this; a batch or two is no overload",
    )
    restore_below_ms: float = Field(
        default=15,
        gt=0,
        le=10_000,
        description="quality comes back while requests wait less than this; well below shrink_above_ms, or it flaps",
    )
    shrink_dwell_s: float = Field(
        default=0.2, gt=0, le=60, description="seconds between two steps down; a step shows its effect within it"
    )
    restore_dwell_s: float = Field(
        default=1, gt=0, le=600, description="seconds between two steps up, and from a step down to the next one up"
    )

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.restore_below_ms >= self.shrink_above_ms:
            raise ValueError("restore_below_ms: must be less than shrink_above_ms, or quality would flap")
        return self
