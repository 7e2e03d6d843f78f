"""Settings of the pool's devices, and of the actors that run it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator

from configs.branch import Branch
from configs.plan_settings import Tier

Core = Annotated[int, Field(ge=0, le=4_095)]


class DeviceSettings(Branch):
    """One device of the pool; an emulated one is a pinned set of CPU cores that stands in for another kind."""

    id: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$",
        description="unique; letters, digits, dots, dashes and underscores, as it also names a file and a Ray resource",
    )
    kind: Tier
    cores: tuple[Core, ...] = Field(default=(), description="of a CPU device or an emulated one; no other device's")
    memory_bytes: int = Field(ge=0, le=1 << 45, description="what leases may hold of it together")
    emulated: bool = Field(default=False, description="cores stand in for it; every view says so")
    index: int | None = Field(
        default=None, ge=0, le=1_023, description="of a GPU or NPU that is there, as its driver counts on its node"
    )
    node: str = Field(default="", max_length=253, description="name of its Ray node; absent: the head node")
    rack: str = Field(default="", max_length=100, description="copies that must not fail together avoid one rack")
    zone: str = Field(default="", max_length=100, description="the same for zones")
    price_per_hour: float = Field(
        default=0.0, ge=0, le=1e6, description="of the whole device; 0: that of its kind in pool.price_per_hour"
    )

    @model_validator(mode="after")
    def _made_of_something(self) -> Self:
        if (self.kind == "cpu" or self.emulated) != bool(self.cores):
            raise ValueError("cores: a CPU device and an emulated one has some, any other has none")
        if self.emulated and self.kind == "cpu":
            raise ValueError("emulated: cores that stand in for cores are a plain CPU device")
        if (self.index is None) != bool(self.cores):
            raise ValueError("index: a GPU or NPU that is there has one, what is made of cores has none")
        return self


class RuntimeSettings(Branch):
    """How the controller, its agents and the hosts of workloads work together."""

    enabled: bool = Field(default=False, description="run a pool beside the service, on the same devices")
    tick_s: float = Field(default=0.25, gt=0, le=60, description="seconds between two decisions of the controller")
    checkpoint_s: float = Field(
        default=30, gt=0, le=86_400, description="seconds between two checkpoints: what a killed workload loses at most"
    )
    silent_after_s: float = Field(
        default=60,
        gt=0,
        le=86_400,
        description="a workload's process that says nothing for so long is killed; idle-priority work answers late",
    )
    suspect_after_s: float = Field(
        default=5, gt=0, le=3_600, description="a node's agent that says nothing for so long: nothing new goes there"
    )
    serving_slo_ms: float | None = Field(
        default=100, gt=0, le=60_000, description="p99 that serving replicas must stay below; others make way for it"
    )
    renew_s: float = Field(default=2, gt=0, le=600, description="seconds between two renewals of a serving replica")
    claim_ttl_s: float = Field(
        default=15, gt=0, le=3_600, description="a serving replica that does not renew for so long has left its slice"
    )
    takeover_s: float = Field(
        default=10, gt=0, le=600, description="how long a controller that starts waits for the answers of what runs"
    )
    gate_folder: Path | None = Field(
        default=None, description="of the gates, in memory at best; absent: one of this user and home in /dev/shm"
    )

    @model_validator(mode="after")
    def _renewed_in_time(self) -> Self:
        if self.claim_ttl_s <= self.renew_s:
            raise ValueError("claim_ttl_s: must be more than renew_s, or every claim would lapse")
        return self


def device_faults(devices: Sequence[DeviceSettings]) -> Iterator[str]:
    """What contradicts itself between devices: an id used twice, a core of two devices of one node."""
    ids: dict[str, int] = {}
    cores: dict[tuple[str, int], int] = {}
    for place, device in enumerate(devices):
        if ids.setdefault(device.id, place) != place:
            yield f"devices.{place}.id: {device.id!r} is that of devices.{ids[device.id]} too"
        for core in device.cores:
            first = cores.setdefault((device.node, core), place)
            if first != place:
                yield f"devices.{place}.cores: core {core} is one of devices.{first} too"
