"""Settings of what callers report: clicks and the like, and where they are kept."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from configs.branch import Branch

YEAR_S = 365 * 86_400


class EventSettings(Branch):
    """``POST /v1/events`` and the event log."""

    log: Literal["embedded", "redis"] = Field(
        default="embedded", description="embedded: a file on this host; redis: a stream on a server"
    )
    redis_url: str = Field(default="redis://127.0.0.1:6379/0", description="used when log is redis")
    redis_timeout_ms: float = Field(default=1_000, gt=0, le=60_000, description="bound on one call of that server")
    require_durable: bool = Field(
        default=True,
        description="take events only while the Redis server has `appendonly yes` and `appendfsync always`; else "
        "those of the last second may be lost with it",
    )
    future_s: float = Field(
        default=60,
        ge=0,
        le=86_400,
        description="how far ahead of ours a caller's clock may be; later times are refused",
    )
    max_age_s: float = Field(
        default=YEAR_S, gt=0, le=10 * YEAR_S, description="age of the oldest event taken; older ones are for `ingest`"
    )
    max_batch: int = Field(default=1_000, ge=1, le=10_000, description="events of one call")
    max_waiting: int = Field(
        default=20_000, ge=1, le=1_000_000, description="events that wait for the log; further calls are refused"
    )
    join_wait_s: float = Field(
        default=0.3,
        ge=0,
        le=10,
        description="how long to wait for a recommendation that an event names: its impression is written behind "
        "its answer, perhaps by another replica",
    )
