"""Dynamic batching: requests that wait for one model share a batch, the urgent ones first.

Each instance of a model is a thread that takes the next batch as soon as it is free. Without a delay an idle model
answers a single request at once; with one, a batch that is not of a preferred size waits for further requests.
Callers may be on any event loop, or on none: they wait for a future.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np

from configs.errors import Overloaded, RecpoolError, Unavailable
from serving.inference_protocol.config import BatchPolicy
from serving.inference_protocol.statistics import ModelStatistics, Timing

log = logging.getLogger("recpool.inference")
Arrays = Mapping[str, np.ndarray]
LOOKED_AT = 4
"""Batches' worth of waiting requests that are looked through for some of the same shape."""
FREELY = contextlib.nullcontext()


class Gate(Protocol):
    """Of a device; `pool.gate.slot.GateSlot` conforms."""

    def busy(self) -> Any: ...


@dataclass(eq=False)
class Job:
    """One request that waits.

    Attributes:
        rows: of its batch axis; 1 for a model without one.
        level: of priority; 1 is the most urgent.
        deadline_s: after which it is not begun, by time.monotonic(); None: whenever.
    """

    inputs: Arrays
    rows: int
    level: int
    deadline_s: float | None = None
    answer: Future[Arrays] = field(default_factory=Future)
    arrived_ns: int = field(default_factory=time.monotonic_ns)

    @property
    def form(self) -> tuple[Any, ...]:
        """Requests of one form fit into one batch."""
        return tuple((name, array.shape[1:]) for name, array in sorted(self.inputs.items()))


class Batcher:
    """The queue of one version of a model, and the threads that work on it.

    Args:
        run: the model; called by ``instances`` threads at once.
        max_queued: waiting requests from which a further one is refused.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[Arrays], dict[str, np.ndarray]],
        policy: BatchPolicy,
        instances: int,
        max_queued: int,
        statistics: ModelStatistics,
    ):
        self._name, self._run, self._policy, self._statistics = name, run, policy, statistics
        self._max_queued = min(policy.max_queued or max_queued, max_queued)
        self._queues: dict[int, deque[Job]] = {level: deque() for level in range(1, policy.levels + 1)}
        self._ready = threading.Condition()
        self._closed = False
        self._gate: Gate | None = None
        self._cores: Collection[int] = ()
        self._threads = [
            threading.Thread(target=self._work, name=f"model-{name}-{number}", daemon=True)
            for number in range(instances)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def queue(self) -> int:
        """Requests that wait."""
        return sum(map(len, self._queues.values()))

    def pass_gate(self, gate: Gate | None, cores: Collection[int] = ()) -> None:
        """Compute behind the gate of a device, on these cores, from the next batch on."""
        self._gate, self._cores = gate, cores

    def submit(self, job: Job) -> Future[Arrays]:
        """Outputs by name, once they are there; cancel it when nobody waits for it any more.

        Raises:
            Overloaded: too many wait. Unavailable: the model is being unloaded.
        """
        with self._ready:
            if self._closed:
                raise Unavailable(f"Request for unknown model: '{self._name}' is not found: it is being unloaded")
            if self.queue >= self._max_queued:
                raise Overloaded(
                    f"Exceeds maximum queue size of model '{self._name}': {self._max_queued} requests wait"
                )
            self._queues[job.level].append(job)
            self._ready.notify()
        return job.answer

    def close(self) -> None:
        """Take no more requests, answer those that wait, and end the threads; blocks until then."""
        with self._ready:
            self._closed = True
            self._ready.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self) -> None:
        held: Collection[int] = ()
        while (batch := self._take()) is not None:
            gate, cores = self._gate, self._cores
            if cores and cores != held:
                os.sched_setaffinity(0, cores)  # of this thread alone
                held = cores
            self._answer(batch, gate)

    def _take(self) -> list[Job] | None:
        """The next batch, once there is one; None when the batcher was closed and all are answered."""
        with self._ready:
            while True:
                batch = self._form(time.monotonic())
                if not batch:
                    if self._closed:
                        return None
                    self._ready.wait()
                    continue
                left_s = self._delay_left_s(batch)
                if left_s <= 0:
                    self._remove(batch)
                    return batch
                self._ready.wait(left_s)

    def _form(self, now_s: float) -> list[Job]:
        """The most urgent request and those that fit into its batch, in order; they stay in the queue."""
        self._drop_lost(now_s)
        waiting = (job for queue in self._queues.values() for job in queue)
        first = next(waiting, None)
        if first is None:
            return []
        batch, rows, form = [first], first.rows, first.form
        if not self._policy.is_dynamic:
            return batch
        most = self._policy.max_rows
        for _, job in zip(range(LOOKED_AT * most), waiting):  # noqa: B905 - whichever ends first
            if rows >= most:
                break
            if rows + job.rows <= most and job.form == form:
                batch.append(job)
                rows += job.rows
        return batch

    def _delay_left_s(self, batch: Sequence[Job]) -> float:
        rows = sum(job.rows for job in batch)
        policy = self._policy
        if self._closed or not policy.is_dynamic or not policy.delay_s or rows >= policy.max_rows:
            return 0.0
        if rows in policy.preferred:
            return 0.0
        oldest_s = min(job.arrived_ns for job in batch) / 1e9
        return oldest_s + policy.delay_s - time.monotonic()

    def _drop_lost(self, now_s: float) -> None:
        """Requests whose callers have left, and those whose time is over."""
        for queue in self._queues.values():
            for job in [each for each in queue if each.answer.done() or each.deadline_s is not None]:
                if job.answer.done():
                    queue.remove(job)
                elif job.deadline_s is not None and job.deadline_s <= now_s:
                    queue.remove(job)
                    self._settle(job, Unavailable("Request timeout expired"))

    def _remove(self, batch: Sequence[Job]) -> None:
        """Take the batch out of the queue: nobody can cancel it any more."""
        chosen = set(map(id, batch))
        for level, queue in self._queues.items():
            if any(id(job) in chosen for job in queue):
                self._queues[level] = deque(job for job in queue if id(job) not in chosen)
        if any(self._queues.values()):
            self._ready.notify()  # for another instance

    def _answer(self, batch: Sequence[Job], gate: Gate | None) -> None:
        """Compute a batch; when it fails, each request alone, so that only those that are wrong fail."""
        batch = [job for job in batch if job.answer.set_running_or_notify_cancel()]
        if not batch:
            return
        try:
            with gate.busy() if gate is not None else FREELY:
                found, timing = self._computed(batch)
        except Exception as error:  # the edge between callers and whatever a model raises
            self._failed(batch, error, gate)
            return
        self._statistics.executed(sum(job.rows for job in batch), [job.arrived_ns for job in batch], timing)
        for job, outputs in zip(batch, found, strict=True):
            job.answer.set_result(outputs)

    def _failed(self, batch: Sequence[Job], error: Exception, gate: Gate | None) -> None:
        if len(batch) == 1:
            log.warning("model %s failed", self._name, exc_info=error)
            self._statistics.failed(batch[0].arrived_ns)
            said = error if isinstance(error, RecpoolError) else RecpoolError(f"model '{self._name}': {error!s:.500}")
            batch[0].answer.set_exception(said)
            return
        for job in batch:
            try:
                with gate.busy() if gate is not None else FREELY:
                    (outputs,), timing = self._computed([job])
            except Exception as own:  # as above
                self._failed([job], own, gate)
            else:
                self._statistics.executed(job.rows, [job.arrived_ns], timing)
                job.answer.set_result(outputs)

    def _computed(self, batch: Sequence[Job]) -> tuple[list[Arrays], Timing]:
        begun_ns = time.monotonic_ns()
        inputs = batch[0].inputs if len(batch) == 1 else _gathered(batch)
        gathered_ns = time.monotonic_ns()
        outputs = self._run(inputs)
        computed_ns = time.monotonic_ns()
        is_whole = len(batch) == 1 and not self._policy.max_rows
        parts: list[Arrays] = [outputs] if is_whole else self._parts(batch, outputs)
        return parts, Timing(begun_ns, gathered_ns, computed_ns, time.monotonic_ns())

    def _parts(self, batch: Sequence[Job], outputs: Arrays) -> list[Arrays]:
        rows = sum(job.rows for job in batch)
        for name, array in outputs.items():
            if array.shape[:1] != (rows,):
                raise RecpoolError(
                    f"model '{self._name}': output '{name}' of shape {list(array.shape)} for a batch of {rows} rows; "
                    "set max_batch_size to 0 in its config.pbtxt"
                )
        found, at = [], 0
        for job in batch:
            found.append({name: array[at : at + job.rows] for name, array in outputs.items()})
            at += job.rows
        return found

    def _settle(self, job: Job, error: RecpoolError) -> None:
        self._statistics.failed(job.arrived_ns)
        if job.answer.set_running_or_notify_cancel():
            job.answer.set_exception(error)


def _gathered(batch: Sequence[Job]) -> Arrays:
    return {name: np.concatenate([job.inputs[name] for job in batch]) for name in batch[0].inputs}
