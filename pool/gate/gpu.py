"""The gate's back end for CUDA devices: stream priority, a memory quota, and device time by events.

The protocol is that of the CPU back end: `GateSlot` with a `CudaMeter`. A kernel that runs is not interrupted, so
that guaranteed work waits for the step on the device at most: best-effort steps are sized to 5 ms by
`MicroStepper` from `Turn.metered_ns`. Written after CUDA's documentation; it was not run on hardware.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from configs.errors import ConfigError, Conflict
from pool.workload import WorkloadPriority

STREAM_PRIORITY: dict[WorkloadPriority, int] = {"guaranteed": -5, "burstable": -1, "best_effort": 0}
"""Lower goes first. Numbers outside a device's range are mapped to its nearest (torch.cuda.Stream's documentation)."""


@dataclass(frozen=True)
class CudaSeat:
    """What a process has of a CUDA device: compute in ``with torch.cuda.stream(seat.stream)``."""

    stream: torch.cuda.Stream
    meter: CudaMeter


class CudaMeter:
    """Device time between two events on a stream. `stop` waits for the device, as a step must before it ends."""

    def __init__(self, stream: torch.cuda.Stream):
        self._stream = stream

    def start(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def stop(self, mark: torch.cuda.Event) -> int:
        end = torch.cuda.Event(enable_timing=True)
        end.record(self._stream)
        end.synchronize()
        return round(mark.elapsed_time(end) * 1e6)


def enter_device(index: int, priority: WorkloadPriority, memory_bytes: int) -> CudaSeat:
    """Admit this process to a CUDA device with so much of its memory; call it before anything is allocated there.

    Args:
        index: of the device, as CUDA counts in this process.
        memory_bytes: what its lease holds; PyTorch's allocator refuses more, the CUDA context comes on top.
    Raises:
        ConfigError: there is no such device, or it is smaller than the lease.
        Conflict: others hold so much that the lease does not fit now.
    """
    if index >= torch.cuda.device_count():
        raise ConfigError(f"CUDA device {index}: this process sees {torch.cuda.device_count()}")
    free_bytes, total_bytes = torch.cuda.mem_get_info(index)
    fraction = memory_fraction(memory_bytes, free_bytes, total_bytes)
    torch.cuda.set_per_process_memory_fraction(fraction, index)
    stream = torch.cuda.Stream(index, priority=STREAM_PRIORITY[priority])
    return CudaSeat(stream, CudaMeter(stream))


def memory_fraction(memory_bytes: int, free_bytes: int, total_bytes: int) -> float:
    """The quota of a lease as a share of the device's memory.

    Raises:
        ConfigError: the lease holds nothing, or more than the device has.
        Conflict: the lease holds more than is free.
    """
    if not 0 < memory_bytes <= total_bytes:
        raise ConfigError(f"memory_bytes: {memory_bytes} is outside 1 to the device's {total_bytes}")
    if memory_bytes > free_bytes:
        raise Conflict(f"memory_bytes: {memory_bytes} asked for, {free_bytes} of {total_bytes} free")
    return memory_bytes / total_bytes
