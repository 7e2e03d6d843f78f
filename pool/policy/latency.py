"""How long a batch takes on a whole device: from measurements where there are some, else from the model's graph."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Self

from pydantic import Field, model_validator

from configs.branch import Branch
from configs.pool_settings import RooflineSettings
from pool.device import DeviceKind
from pool.workload import WorkloadAttributes

WIDTH = {"fp32": 1.0, "fp16": 0.5, "int8": 0.25}
"""Bytes of a number, of those in 32-bit floats."""


@dataclass(frozen=True)
class GraphCosts:
    """What one batch costs by the model's graph, as exported in 32-bit floats.

    Attributes:
        flops: of the batch; a multiply-add counts two.
        activation_bytes: that the operators read and write besides weights, for the batch.
        table_bytes: the part of weight_bytes that is only looked up; the rows read of it are activations.
        batch_rows: rows of that batch.
    """

    flops: int
    parameters: int
    weight_bytes: int
    activation_bytes: int
    has_attention: bool
    table_bytes: int = 0
    batch_rows: int = 1


@dataclass(frozen=True)
class Latency:
    """Of one batch on a whole device."""

    p50_ms: float
    p99_ms: float


@dataclass(frozen=True)
class BatchTime:
    """Batches of like size, as they were measured: their rows, times, and how many they were."""

    rows: int
    p50_ms: float
    p99_ms: float
    runs: int = 1


class LatencyProfile(Branch):
    """Measured latency by batch size, on one kind of device. All three have the same length."""

    batch_rows: tuple[int, ...] = Field(min_length=1, max_length=1_000, description="rising")
    p50_ms: tuple[float, ...]
    p99_ms: tuple[float, ...]
    emulated: bool = Field(default=False, description="measured on cores that stood in for the device")

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        sizes = self.batch_rows
        if len(self.p50_ms) != len(sizes) or len(self.p99_ms) != len(sizes):
            raise ValueError("batch_rows, p50_ms and p99_ms: must be equally long")
        if sizes[0] < 1 or any(a >= b for a, b in zip(sizes, sizes[1:], strict=False)):
            raise ValueError("batch_rows: must rise, from at least 1")
        if any(not 0 < p50 <= p99 < math.inf for p50, p99 in zip(self.p50_ms, self.p99_ms, strict=True)):
            raise ValueError("p50_ms: must be above 0 and at most p99_ms, which must be finite")
        return self

    def latency(self, rows: int) -> Latency:
        """Of a batch of any size; see `interpolate`."""
        p50_ms = interpolate(rows, self.batch_rows, self.p50_ms)
        return Latency(p50_ms, max(p50_ms, interpolate(rows, self.batch_rows, self.p99_ms)))


def size_class(rows: int) -> int:
    """Sizes of one class are within a factor of two: 1, 2, 3-4, 5-8, 9-16 rows and so on."""
    return (rows - 1).bit_length()


def measured_again(old: LatencyProfile | None, new: Iterable[BatchTime], emulated: bool) -> LatencyProfile | None:
    """A profile with new measurements, each in the place of an old one of its class of sizes.

    There are few classes, so a profile stays small however often it is measured. What was measured on cores that
    stood in for the device is never mixed with what was measured on one. None when nothing can be told.
    """
    points: dict[int, BatchTime] = {}
    if old is not None and old.emulated == emulated:
        for rows, p50_ms, p99_ms in zip(old.batch_rows, old.p50_ms, old.p99_ms, strict=True):
            points[size_class(rows)] = BatchTime(rows, p50_ms, p99_ms)
    for each in new:
        if each.rows >= 1 and 0 < each.p50_ms <= each.p99_ms < math.inf:
            points[size_class(each.rows)] = each
    if not points:
        return old
    kept = [points[place] for place in sorted(points)]
    return LatencyProfile(
        batch_rows=tuple(each.rows for each in kept),
        p50_ms=tuple(each.p50_ms for each in kept),
        p99_ms=tuple(each.p99_ms for each in kept),
        emulated=emulated,
    )


def interpolate(rows: int, sizes: Sequence[int], values_ms: Sequence[float]) -> float:
    """Latency at a batch size between, below or above those measured.

    Between two sizes it lies on the straight line on logarithmic axes, which is exact for every power law and
    thus for a device that is bound by overhead as for one that is bound by work. Below the smallest it
    is that of the smallest. Above the largest it goes on straight on plain axes and never falls; a single
    measurement is taken to be all work there.

    Args:
        sizes: rising, shape [S].
        values_ms: above 0, shape [S].
    """
    if rows <= sizes[0]:
        return values_ms[0]
    if rows > sizes[-1]:
        if len(sizes) == 1:
            return values_ms[0] * rows / sizes[0]
        slope = (values_ms[-1] - values_ms[-2]) / (sizes[-1] - sizes[-2])
        return values_ms[-1] + max(0.0, slope) * (rows - sizes[-1])
    above = next(place for place, size in enumerate(sizes) if size >= rows)
    if sizes[above] == rows:
        return values_ms[above]
    part = math.log(rows / sizes[above - 1]) / math.log(sizes[above] / sizes[above - 1])
    return values_ms[above - 1] ** (1 - part) * values_ms[above] ** part


def roofline(
    costs: GraphCosts, rows: int, kind: DeviceKind, settings: RooflineSettings, attributes: WorkloadAttributes
) -> Latency:
    """Latency from the graph: a batch takes as long as its arithmetic or its memory traffic, whichever is longer.

    Precision narrows the numbers and raises the peak, pruning takes its share of the weights, shards divide all.
    Source: Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009.
    """
    peak, scale, width = settings.peak(kind), rows / costs.batch_rows, WIDTH[attributes.precision]
    kept = 1 - attributes.pruning
    giga = {"fp32": peak.fp32_gflops, "fp16": peak.fp16_gflops, "int8": peak.int8_gops}[attributes.precision]
    moved = (costs.weight_bytes - costs.table_bytes) * kept + costs.activation_bytes * scale
    compute_ms = costs.flops * scale * kept / (giga * 1e6)
    memory_ms = moved * width / (peak.gbytes_per_s * 1e6)
    p50_ms = max(compute_ms, memory_ms) / (settings.efficiency * attributes.shards) + peak.overhead_ms
    return Latency(p50_ms, p50_ms * settings.tail)
