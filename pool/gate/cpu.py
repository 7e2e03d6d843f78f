"""The gate's back end for CPU devices and emulated ones: cores, scheduling class and threads of a process.

The gate keeps work apart between steps; within a step the kernel must do so. It runs a best-effort process
(SCHED_IDLE) only where nothing else wants the core, and lets others interrupt a burstable one (SCHED_BATCH, nice).
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from configs.errors import ConfigError
from pool.device import Device
from pool.engines.threads import pin_process
from pool.gate.meters import Meter, ProcessMeter, ThreadMeter
from pool.workload import WorkloadPriority

NICE_OF: dict[WorkloadPriority, int] = {"guaranteed": 0, "burstable": 10}
POLICY_OF: dict[WorkloadPriority, int] = {
    "guaranteed": os.SCHED_OTHER,
    "burstable": os.SCHED_BATCH,
    "best_effort": os.SCHED_IDLE,
}


@dataclass(frozen=True)
class CpuSeat:
    """What a process has of a CPU device.

    Attributes:
        threads: that its numerical libraries use.
        is_first_rank: whether the kernel took the scheduling class of its priority; False only where this process
            had a lower one before and the kernel does not let it back (without CAP_SYS_NICE or RLIMIT_NICE).
    """

    cores: tuple[int, ...]
    threads: int
    meter: Meter
    is_first_rank: bool


def enter_device(device: Device, priority: WorkloadPriority, threads: int | None = None) -> CpuSeat:
    """Put this process, with all threads it has and will have, on the device's cores in its priority's class.

    Args:
        threads: most that the numerical libraries may use; absent: one for each core.
    Raises:
        ConfigError: the device has no cores, or some that this machine does not let the process use.
    """
    _check_cores(device)
    for task in _tasks():
        os.sched_setaffinity(task, device.cores)
    is_taken = set_class(priority)
    count = max(1, min(threads or len(device.cores), len(device.cores)))
    pin_process(count)
    return CpuSeat(device.cores, count, ThreadMeter() if count == 1 else ProcessMeter(), is_taken)


def set_class(priority: WorkloadPriority) -> bool:
    """Let the kernel schedule all threads of this process by its priority; False where it refused for one."""
    refused = 0
    for task in _tasks():
        refused += not _permitted(os.sched_setscheduler, task, POLICY_OF[priority], os.sched_param(0))
        if priority in NICE_OF:
            refused += not _permitted(os.setpriority, os.PRIO_PROCESS, task, NICE_OF[priority])
    return refused == 0


def may_rise() -> bool:
    """Whether the kernel lets a thread of this process return to a nice value that it has left for a lower rank."""
    found: list[bool] = []

    def leave_and_return() -> None:
        task = threading.get_native_id()
        before = os.getpriority(os.PRIO_PROCESS, task)
        os.setpriority(os.PRIO_PROCESS, task, before + 1)
        found.append(_permitted(os.setpriority, os.PRIO_PROCESS, task, before))

    tried = threading.Thread(target=leave_and_return)
    tried.start()
    tried.join()
    return found[0]


def _check_cores(device: Device) -> None:
    if not device.cores:
        raise ConfigError(f"device {device.id!r}: cores: none given; a CPU device needs at least one")
    missing = sorted(set(device.cores) - _usable_cores())
    if missing:
        raise ConfigError(f"device {device.id!r}: cores: this process may not use {missing} on this machine")


def _usable_cores() -> set[int]:
    """Cores that the machine or container leaves to this process, wherever it is bound at present."""
    bound = os.sched_getaffinity(0)
    with suppress(OSError):
        # The kernel cuts the set down to what is allowed (sched_setaffinity(2)).
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        usable = os.sched_getaffinity(0)
        os.sched_setaffinity(0, bound)
        return usable
    return bound


def _tasks() -> Iterator[int]:
    """Ids of this process's threads; those started from them later inherit what is set."""
    return (int(task.name) for task in Path("/proc/self/task").iterdir())


def _permitted(call: Callable[..., object], *args: object) -> bool:
    try:
        call(*args)
    except ProcessLookupError:  # a thread that has ended meanwhile
        return True
    except PermissionError:
        return False
    return True
