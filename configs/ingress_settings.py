"""Settings of HAProxy, which Serve runs in front of the gateway's replicas."""

from __future__ import annotations

from pydantic import Field

from configs.branch import Branch


class IngressSettings(Branch):
    """HAProxy in front of the gateway's replicas: what it hands on, what waits in it, what it refuses."""

    threads: int = Field(default=1, ge=1, le=64, description="one passes on far more than the replicas of ten cores do")
    max_inflight: int = Field(
        default=16,
        ge=1,
        le=1_024,
        description="calls a gateway replica is given at a time; the others wait in HAProxy, urgent ones in front, for "
        "whichever replica is free first. Enough for a batch to form while another runs",
    )
    max_queued: int = Field(
        default=64,
        ge=1,
        le=65_536,
        description="waiting calls from which a further one is refused with 429; low priority already from a quarter "
        "of it, high only from four times",
    )
    max_queued_ms: int = Field(
        default=400, ge=10, le=10_000, description="a call that no replica took for so long is answered with 503"
    )
    check_ms: int = Field(
        default=500,
        ge=50,
        le=60_000,
        description="pause between two checks of a replica, and the longest wait for one; three misses take it out, "
        "which should take longer than a deadline: a busy replica is not a hung one",
    )
    stopped_ms: int | None = Field(
        default=20,
        ge=1,
        le=60_000,
        description="a replica that a signal has stopped for so long is killed, and its calls given to another; one "
        "that a debugger holds is left alone. null: it is left to HAProxy, which notices after the longest deadline",
    )
    replay_bytes: int = Field(
        default=65_536,
        ge=16_384,
        le=8_388_608,
        description="a call up to this size is given to another replica when the first dies or hangs",
    )
