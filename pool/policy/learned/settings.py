"""Settings of the learned split."""

from __future__ import annotations

from pydantic import Field

from configs.branch import Branch


class LearnedSettings(Branch):
    """What an interval is worth, and when what was learnt is trusted."""

    violation_cost: float = Field(default=20.0, ge=0, description="of all requests late, in whole devices for as long")
    warmup_worth: float = Field(default=2.0, gt=0, description="of warm-up and evaluation, over fine-tuning")
    most_pressure: float = Field(
        default=0.9, gt=0, le=10, description="p99 over SLO above which the planner alone decides"
    )
    most_spread: float = Field(default=0.05, gt=0, description="of a foretold reward, above which it counts as unsure")
    sureness: float = Field(default=2.0, ge=0, description="spreads by which a split must be better than the planner's")
    explore: float = Field(default=2.0, ge=0, description="spreads that are added to a reward while learning")
    noise: float = Field(default=0.1, gt=0, description="standard deviation of an interval's reward")
