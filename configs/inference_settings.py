"""Settings of models as a service: the Open Inference Protocol and its model repository."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field

from configs.branch import Branch


class InferenceSettings(Branch):
    """Any model as a service, by REST and gRPC: the funnel's own models and those of a folder."""

    enabled: bool = Field(default=False, description="serve models by the Open Inference Protocol, below /v2")
    folder: Path | None = Field(
        default=None,
        description="the model repository, in Triton's layout; absent: `models` of the home. Whoever can write to it "
        "can run code here, as a TorchScript file is a program",
    )
    grpc_host: str = Field(default="127.0.0.1", description="loopback: the gRPC side asks for no token")
    grpc_port: int | None = Field(
        default=None, ge=1, le=65_535, description="of the gRPC side; absent: the one after serving.port"
    )
    replicas: int = Field(
        default=1, ge=1, le=64, description="processes, each with all models; with several they share the gRPC port"
    )
    share_milli: int = Field(
        default=100, ge=1, le=64_000, description="thousandths of a core that a replica holds in Ray"
    )
    model_share_milli: int = Field(
        default=100,
        ge=1,
        le=64_000,
        description="thousandths of a core that a model claims of the pool, unless its config.pbtxt says "
        "otherwise (parameter share_milli)",
    )
    threads: int = Field(default=1, ge=1, le=64, description="cores that one call of a model may use")
    max_body_bytes: int = Field(
        default=16_777_216, ge=1_024, le=1 << 29, description="of a request, also after decompression"
    )
    max_elements: int = Field(default=4_194_304, ge=1, le=1 << 28, description="of one tensor of a request")
    max_queued: int = Field(
        default=2_048, ge=1, le=65_536, description="requests that wait for one model; a further one is refused"
    )
    default_batch_rows: int = Field(
        default=32,
        ge=1,
        le=65_536,
        description="rows batched for a model without config.pbtxt whose first axis is free; 1: none are batched",
    )
    poll_s: float = Field(default=0.5, gt=0, le=600, description="seconds between two looks at the repository")
