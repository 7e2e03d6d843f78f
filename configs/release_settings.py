"""Settings of where releases are kept, for how long, and what lets one of them serve."""

from __future__ import annotations

from pydantic import Field

from configs.branch import Branch


class RolloutLimits(Branch):
    """What a release may do worse than the champion beside it, on live traffic, before it is rolled back."""

    slo_ms: float = Field(default=100, gt=0, le=60_000, description="latency that answers should stay below")
    late: float = Field(default=0.02, ge=0, le=1, description="share of answers above slo_ms, beyond the champion's")
    errors: float = Field(default=0.005, ge=0, le=1, description="share of requests that fail, beyond the champion's")
    empty: float = Field(
        default=0.01, ge=0, le=1, description="share of answers without an item, beyond the champion's"
    )
    broken: float = Field(
        default=0.02, ge=0, le=1, description="share of answers that lack a stage which failed, beyond the champion's"
    )
    slower: float = Field(default=1.5, ge=1, le=100, description="times the champion's median latency")
    slower_ms: float = Field(
        default=10, gt=0, le=10_000, description="a median that is less than this above the champion's is none of it"
    )
    overlap: float = Field(
        default=0, ge=0, le=1, description="least mean share of items that a shadow has in common with the champion"
    )
    least_latencies: int = Field(
        default=30, ge=5, le=1_000_000, description="answers of both before medians and overlap are compared"
    )


class GateLimits(Branch):
    """What a release may do worse than the champion on held-out events, before it gets any traffic."""

    auc: float = Field(default=0.01, ge=0, le=1, description="the fine ranker's AUC, by so much below the champion's")
    recall: float = Field(
        default=0.1, ge=0, le=1, description="recall of the whole funnel, by this share of the champion's below it"
    )
    calibration: float = Field(
        default=0.02, ge=0, le=1, description="expected calibration error of likes, by so much above the champion's"
    )
    users: int = Field(default=300, ge=1, le=1_000_000, description="users with held-out events that are asked for")
    most_rows: int = Field(default=20_000, ge=100, le=10_000_000, description="newest held-out events to score")


class ReleaseSettings(Branch):
    """The release repository."""

    url: str | None = Field(
        default=None,
        min_length=1,
        max_length=2_048,
        pattern=r"^[a-z][a-z0-9+.-]*://",
        description="where releases are kept, as fsspec writes it: s3://bucket/releases; absent: below home, where "
        "copies of those in use are in any case",
    )
    keep: int = Field(
        default=5, ge=1, le=10_000, description="newest releases that `recpool release gc` leaves, beside those in use"
    )
    limits: RolloutLimits = RolloutLimits()
    gate: GateLimits = GateLimits()
