"""What a model has done, as the statistics extension counts it: requests, rows, executions, and times by part."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

LATENCIES_KEPT = 2_048
DURATIONS = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")


@dataclass
class Duration:
    """How often something was done, and how long it took together."""

    count: int = 0
    ns: int = 0

    def add(self, ns: int, count: int = 1) -> None:
        self.count += count
        self.ns += ns * count


@dataclass(frozen=True)
class Timing:
    """When a batch was begun, put together, computed and taken apart; time.monotonic_ns()."""

    begun_ns: int
    gathered_ns: int
    computed_ns: int
    ended_ns: int

    @property
    def parts(self) -> tuple[int, int, int]:
        return (
            self.gathered_ns - self.begun_ns,
            self.computed_ns - self.gathered_ns,
            self.ended_ns - self.computed_ns,
        )


@dataclass
class BatchStatistics:
    """Executions of one size."""

    compute_input: Duration = field(default_factory=Duration)
    compute_infer: Duration = field(default_factory=Duration)
    compute_output: Duration = field(default_factory=Duration)


class ModelStatistics:
    """Counters of one version of a model; may be written to by several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.durations = {name: Duration() for name in DURATIONS}
        self.batches: dict[int, BatchStatistics] = {}
        self.inferences = self.executions = self.last_inference_ms = 0
        self._latencies: deque[tuple[float, float]] = deque(maxlen=LATENCIES_KEPT)

    def executed(self, rows: int, arrived_ns: Sequence[int], timing: Timing) -> None:
        """A batch was answered, of requests that arrived at these times."""
        with self._lock:
            self.inferences += rows
            self.executions += 1
            self.last_inference_ms = time.time_ns() // 1_000_000
            batch = self.batches.setdefault(rows, BatchStatistics())
            for name, ns in zip(DURATIONS[3:], timing.parts, strict=True):
                self.durations[name].add(ns, len(arrived_ns))
                getattr(batch, name).add(ns)
            for at_ns in arrived_ns:
                self.durations["success"].add(timing.ended_ns - at_ns)
                self.durations["queue"].add(timing.begun_ns - at_ns)
                self._latencies.append((timing.ended_ns / 1e9, (timing.ended_ns - at_ns) / 1e6))

    def failed(self, arrived_ns: int) -> None:
        with self._lock:
            self.durations["fail"].add(time.monotonic_ns() - arrived_ns)

    def latencies_ms(self, over_s: float) -> list[float]:
        """Of the requests answered within the last seconds, at most 2,048."""
        since_s = time.monotonic() - over_s
        with self._lock:
            return [took_ms for at_s, took_ms in self._latencies if at_s >= since_s]
