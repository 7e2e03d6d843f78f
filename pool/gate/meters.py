"""Meters: how much device time a piece of work took."""

from __future__ import annotations

import time
from typing import Any, Protocol


class Meter(Protocol):
    """Measures device time between `start` and `stop`, in nanoseconds."""

    def start(self) -> Any:
        """Begin; what it returns is handed to `stop`."""
        ...

    def stop(self, mark: Any) -> int:
        """Nanoseconds of device time since the mark."""
        ...


class ThreadMeter:
    """CPU time of the calling thread: of steps that one thread computes."""

    start = staticmethod(time.thread_time_ns)

    @staticmethod
    def stop(mark: int) -> int:
        return time.thread_time_ns() - mark


class ProcessMeter:
    """CPU time of the whole process: of steps that spread over its threads, while it does nothing else."""

    start = staticmethod(time.process_time_ns)

    @staticmethod
    def stop(mark: int) -> int:
        return time.process_time_ns() - mark
