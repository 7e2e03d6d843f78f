"""Settings of the demand forecast."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from configs.branch import Branch

DAY_S = 86_400


class ForecastSettings(Branch):
    """How finely demand is watched, how much of it is remembered, and how far ahead it is foretold."""

    step_s: float = Field(
        default=10, gt=0, le=14_400, description="seconds of one observation; shorter ones are noisier, not earlier"
    )
    slot_s: float = Field(
        default=300,
        gt=0,
        le=14_400,
        description="seconds of one slot of the remembered days, a whole number of steps; a day is a whole number of "
        "slots. Five minutes keep what a timer starts on the hour",
    )
    history_days: int = Field(
        default=35, ge=1, le=400, description="days remembered; from 8 on weeks are seen, holidays need months"
    )
    max_lead_s: float = Field(default=3_600, gt=0, le=43_200, description="seconds of the furthest forecast")
    errors_kept: int = Field(
        default=512, ge=64, le=8_192, description="past errors at each lead that quantiles are read from"
    )

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if self.slot_s % self.step_s:
            raise ValueError("slot_s: must be a whole number of steps (step_s)")
        if DAY_S % self.slot_s:
            raise ValueError("slot_s: a day must be a whole number of slots")
        if self.max_lead_s < self.step_s:
            raise ValueError("max_lead_s: must be at least one step (step_s)")
        return self

    @property
    def slots_of_day(self) -> int:
        return int(DAY_S // self.slot_s)
