"""What there is on the node of this process: cores, memory, GPUs by NVML, NPUs by torch_npu."""

from __future__ import annotations

import importlib
import logging
import os
from collections.abc import Callable
from typing import Any

import psutil

from pool.runtime.messages import AcceleratorFound

log = logging.getLogger("recpool.pool")
Import = Callable[[str], Any]


def usable_cores() -> tuple[int, ...]:
    """Cores that the machine or container leaves to this process."""
    return tuple(sorted(os.sched_getaffinity(0)))


def memory_bytes() -> int:
    """Of the node, as far as a container's limit is not below it."""
    limits = [psutil.virtual_memory().total]
    try:
        with open("/sys/fs/cgroup/memory.max", encoding="ascii") as file:  # noqa: PTH123 - no file of ours
            limits.append(int(file.read()))
    except (OSError, ValueError):  # no such limit, or "max"
        pass
    return min(limits)


def accelerators(find: Import = importlib.import_module) -> tuple[AcceleratorFound, ...]:
    """GPUs and NPUs whose libraries can be imported here; a library that fails counts as no device."""
    found: list[AcceleratorFound] = []
    for look in (_gpus, _npus):
        try:
            found += look(find)
        except ImportError:
            pass
        except Exception as error:  # each library has errors of its own for a driver that is missing or broken
            log.warning("%s: %s: %s", look.__name__.strip("_"), type(error).__name__, error)
    return tuple(found)


def _gpus(find: Import) -> list[AcceleratorFound]:
    """NVML's device count and memory (NVIDIA Management Library, Python bindings pynvml)."""
    nvml = find("pynvml")
    nvml.nvmlInit()
    try:
        return [
            AcceleratorFound("gpu", index, nvml.nvmlDeviceGetMemoryInfo(nvml.nvmlDeviceGetHandleByIndex(index)).total)
            for index in range(nvml.nvmlDeviceGetCount())
        ]
    finally:
        nvml.nvmlShutdown()


def _npus(find: Import) -> list[AcceleratorFound]:
    """As torch_npu documents it, after torch.cuda; not run on hardware."""
    npu = find("torch_npu").npu
    return [
        AcceleratorFound("npu", index, npu.get_device_properties(index).total_memory)
        for index in range(npu.device_count())
    ]
