"""Settings of the pool: its devices, its actors, and its decisions (costs, placement, shares, crash loops, moves)."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from configs.branch import Branch
from configs.plan_settings import Tier
from configs.pool_runtime_settings import DeviceSettings, RuntimeSettings, device_faults


class DevicePeak(Branch):
    """What a whole device of one kind could do at best, as its data sheet says."""

    fp32_gflops: float = Field(gt=0, le=1e7, description="thousand million operations a second in 32-bit floats")
    fp16_gflops: float = Field(gt=0, le=1e7, description="the same in 16-bit floats")
    int8_gops: float = Field(gt=0, le=1e7, description="the same in 8-bit integers")
    gbytes_per_s: float = Field(gt=0, le=1e6, description="of its memory")
    overhead_ms: float = Field(gt=0, le=1_000, description="of a call, however little it computes")


class RooflineSettings(Branch):
    """What latency is predicted from while a model is not measured. The figures are of one device of the kind."""

    cpu: DevicePeak = Field(
        default=DevicePeak(fp32_gflops=80, fp16_gflops=80, int8_gops=160, gbytes_per_s=10, overhead_ms=0.1),
        description="one core: two 8-wide fused multiply-adds a cycle (AVX2) at 2.5 GHz",
    )
    gpu: DevicePeak = Field(
        default=DevicePeak(
            fp32_gflops=19_500, fp16_gflops=312_000, int8_gops=624_000, gbytes_per_s=1_555, overhead_ms=0.5
        ),
        description="NVIDIA's data sheet of the A100 40 GB; a small call's launches take the overhead",
    )
    npu: DevicePeak = Field(
        default=DevicePeak(
            fp32_gflops=35_000, fp16_gflops=70_000, int8_gops=140_000, gbytes_per_s=204.8, overhead_ms=0.3
        ),
        description="Huawei's data sheet of the Atlas 300I Pro; 32-bit floats, which it has not, count half of 16-bit",
    )
    efficiency: float = Field(default=0.3, gt=0, le=1, description="share of the peaks that a model reaches")
    tail: float = Field(default=1.5, ge=1, le=100, description="p99 over p50, where only p50 can be predicted")

    def peak(self, kind: Tier) -> DevicePeak:
        return {"cpu": self.cpu, "gpu": self.gpu, "npu": self.npu}[kind]


class PlacementSettings(Branch):
    """How a device is chosen."""

    strategy: Literal["measured", "rule_of_thumb", "tier_order"] = Field(
        default="measured",
        description="measured: cheapest predicted slice, the rule of thumb for what has no prediction",
    )
    slo_share: float = Field(default=0.8, gt=0, le=1, description="of the SLO that a predicted latency may take")
    busy_share: float = Field(default=0.7, gt=0, le=1, description="of a slice that the expected load may take")
    usable_milli: int = Field(
        default=100, ge=1, le=1_000, description="a hole smaller than this is of use to nobody and counts as waste"
    )
    light_parameters: int = Field(
        default=5_000_000, ge=1, le=500_000_000, description="a model of at most so many is lightweight"
    )
    small_batch_rows: int = Field(default=64, ge=1, le=65_536, description="a batch of at most so many rows is small")
    large_batch_rows: int = Field(
        default=512, ge=1, le=65_536, description="from so many rows on a transformer belongs on a GPU"
    )


class ShareSettings(Branch):
    """How the live weights of a device follow the latency of its workloads."""

    grow_above: float = Field(default=0.9, gt=0, le=10, description="p99 over SLO above which a share grows")
    shrink_below: float = Field(
        default=0.6, gt=0, le=10, description="p99 over SLO below which it shrinks; well below grow_above, or it flaps"
    )
    step_milli: int = Field(default=100, ge=1, le=1_000, description="one step of growth; a step back is half of it")
    grow_dwell_s: float = Field(default=0.1, gt=0, le=60, description="seconds between two steps of growth")
    shrink_dwell_s: float = Field(default=5, gt=0, le=600, description="seconds from any step to the next one back")
    idle_after_s: float = Field(
        default=1, gt=0, le=600, description="a workload that wanted nothing for so long lends its share to the others"
    )
    least_change_milli: int = Field(
        default=20, ge=1, le=500, description="smaller changes of a weight are not worth writing"
    )

    @model_validator(mode="after")
    def _apart(self) -> Self:
        if self.shrink_below >= self.grow_above:
            raise ValueError("shrink_below: must be less than grow_above, or shares would flap")
        return self


class BreakerSettings(Branch):
    """When a workload that crashes is given up."""

    crashes: int = Field(default=5, ge=1, le=1_000, description="so many within the window park it")
    window_s: float = Field(default=600, gt=0, le=86_400, description="seconds that a crash counts")
    first_wait_s: float = Field(default=1, gt=0, le=3_600, description="from the first crash to the next start")
    longest_wait_s: float = Field(default=60, gt=0, le=3_600, description="the wait doubles with each crash up to this")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.first_wait_s > self.longest_wait_s:
            raise ValueError("first_wait_s: must not be more than longest_wait_s")
        return self


class MovementSettings(Branch):
    """How soon work is moved, and moved again."""

    resume_after_s: float = Field(
        default=5, gt=0, le=3_600, description="from a preemption to the earliest resumption; doubles each time"
    )
    resume_longest_s: float = Field(default=300, gt=0, le=86_400, description="the longest such wait")
    calm_s: float = Field(
        default=900, gt=0, le=86_400, description="without a preemption for so long, the wait starts at its shortest"
    )
    relieve_after_s: float = Field(
        default=3, gt=0, le=3_600, description="an SLO missed for so long at full shares moves work off the device"
    )
    move_dwell_s: float = Field(default=60, gt=0, le=86_400, description="until load moves the same lease again")

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.resume_after_s > self.resume_longest_s:
            raise ValueError("resume_after_s: must not be more than resume_longest_s")
        return self


class PoolSettings(Branch):
    """Devices, actors and decisions of the pool."""

    devices: tuple[DeviceSettings, ...] = Field(
        default=(), description="of the pool; absent: the cores of each Ray node as one device, and its GPUs and NPUs"
    )
    price_per_hour: dict[Tier, Annotated[float, Field(gt=0, le=1e6)]] = Field(
        default_factory=dict,
        description="of a whole device by kind (of all cores of a node together), where the device states none; costs "
        "are told only where every device has a price",
    )
    runtime: RuntimeSettings = RuntimeSettings()
    roofline: RooflineSettings = RooflineSettings()
    placement: PlacementSettings = PlacementSettings()
    shares: ShareSettings = ShareSettings()
    breaker: BreakerSettings = BreakerSettings()
    movement: MovementSettings = MovementSettings()

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        faults = list(device_faults(self.devices))
        if faults:
            raise ValueError("; ".join(faults))
        return self
