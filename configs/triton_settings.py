"""Settings of a Triton server as the engine of stages."""

from __future__ import annotations

from pydantic import Field

from configs.branch import Branch
from configs.plan_settings import STAGES, StageName


class TritonSettings(Branch):
    """A Triton server that computes what stages would else compute in their own process."""

    url: str | None = Field(
        default=None,
        pattern=r"^[A-Za-z0-9.:\[\]_-]+:[0-9]{1,5}$",
        description="host:port of its gRPC side; absent: every stage computes in its own process",
    )
    stages: tuple[StageName, ...] = Field(default=STAGES, description="that ask it; the others compute by themselves")
    deadline_ms: float = Field(
        default=50,
        gt=0,
        le=1_000,
        description="for one call of a model; a later answer is dropped, and the local engine computes",
    )
    faults: int = Field(
        default=3,
        ge=1,
        le=100,
        description="late or failed calls in a row after which it is asked no more",
    )
    retry_ms: float = Field(
        default=500, gt=0, le=60_000, description="from then on, pause between two looks whether the server is back"
    )
    shared_memory: bool | None = Field(
        default=None,
        description="hand tensors over in shared memory; absent: where the server is on this machine. A server that "
        "refuses gets them by gRPC",
    )
    shared_memory_mib: int = Field(default=8, ge=1, le=1_024, description="of each call under way, inputs and outputs")
