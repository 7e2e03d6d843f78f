"""The processes of the resume benchmark: hosts of a fine-tune, and what it trains on."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from configs.settings import Settings
from features.datasets import Dataset
from features.schema import FeatureField, FeatureSchema, HistorySpec
from pool import checkpoints
from pool.runtime.host import WorkloadHost
from pool.runtime.messages import HostOrder, HostStatus, Order
from pool.work import Progress, Work
from pool.workload import WorkloadSpec
from serving.works.registry import make_work

LOG = "units.log"
GENRES = 6
FIELDS = (
    FeatureField(name="city", entity="user", kind="categorical"),
    FeatureField(name="age", entity="user", kind="numeric"),
    FeatureField(name="maker", entity="item", kind="categorical"),
    FeatureField(name="genres", entity="item", kind="multi", max_values=2),
)


def made_dataset(users: int, items: int, events: int) -> Dataset:
    """Users of a city like one kind of item, and each meets ``events`` of the catalogue."""
    rng = np.random.default_rng(0)
    pairs = np.array([(user, item) for user in range(users) for item in rng.permutation(items)[:events]])
    liked = pairs.sum(1) % GENRES < 3
    schema = FeatureSchema(fields=FIELDS, history=HistorySpec(length=50, positive_at=4.0))
    interactions = pa.table(
        {
            "user_id": [f"u{user}" for user in pairs[:, 0]],
            "item_id": [f"i{item}" for item in pairs[:, 1]],
            "value": pa.array(np.where(liked, 5.0, 2.0), pa.float32()),
            "time_s": 1e9 + rng.permutation(len(pairs)),
        }
    )
    profiles = {
        "user_id": [f"u{user}" for user in range(users)],
        "city": [f"c{user % GENRES}" for user in range(users)],
        "age": rng.integers(18, 80, users).astype(float),
    }
    catalogue = {
        "item_id": [f"i{item}" for item in range(items)],
        "maker": [f"m{item % 40}" for item in range(items)],
        "genres": [[f"g{item % GENRES}", f"h{item % 7}"] for item in range(items)],
    }
    return Dataset("resume", schema, interactions, pa.table(profiles), pa.table(catalogue))


class Unit(NamedTuple):
    """How many units were done after this one, how long it computed, and its part of the work."""

    done: int
    took_ns: int
    doing: str


class Logged:
    """A work that writes each unit down where the end of its process cannot take it: one line, one system call."""

    def __init__(self, work: Work, file: Path):
        self._work, self._log = work, os.open(file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.progress, self.save, self.restore, self.result = work.progress, work.save, work.restore, work.result

    def step(self, units: int) -> int:
        for done in range(units):
            doing, began_ns = self._work.progress().doing, time.thread_time_ns()
            if not self._work.step(1):
                return done
            took_ns = time.thread_time_ns() - began_ns
            after = self._work.progress()
            if after.total:  # everything before is reading, which each process does for itself
                os.write(self._log, f"{after.done}\t{took_ns}\t{doing}\n".encode())
        return units


def make_logged(spec: WorkloadSpec, argument: tuple[Settings, Path], folder: Path) -> Logged:
    """A `pool.runtime.messages.Factory`. ``argument``: settings, and the folder of the log."""
    settings, logs = argument
    return Logged(make_work(spec, settings, folder), logs / LOG)


def log_bytes(folder: Path) -> int:
    """How long the log is by now; the processes of a run follow each other in it."""
    return (folder / LOG).stat().st_size if (folder / LOG).exists() else 0


def read_log(folder: Path, start: int = 0, stop: int | None = None) -> list[Unit]:
    """The units of some bytes of the log."""
    lines = (folder / LOG).read_bytes()[start:stop].decode().splitlines()
    return [Unit(int(done), int(took), doing) for done, took, doing in (line.split("\t") for line in lines)]


def processes() -> Any:
    """A context whose processes are forked from one that has loaded torch, which takes seconds."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "torch._dynamo"])
    return context


class HostProcess:
    """A `WorkloadHost` in a process of its own, which stays until it is told to go, or is killed."""

    def __init__(self, context: Any, order: HostOrder):
        self._pipe, there = context.Pipe()
        self._process: BaseProcess = context.Process(target=_serve, args=(there, order), daemon=True)
        self._process.start()
        there.close()

    def ask(self, verb: str, *arguments: Any) -> HostStatus:
        self._pipe.send((verb, arguments))
        return self._pipe.recv()

    def wait(self, done: int) -> HostStatus:
        """Until so many units are done, or it has ended."""
        while True:
            status = self.ask("status")
            if status.phase == "ended" or status.progress and status.progress.total and status.progress.done >= done:
                return status
            time.sleep(0.002)

    def preempt(self, epoch: int) -> None:
        self.ask("preempt", Order(epoch, "the benchmark asked"))

    def end(self) -> HostStatus:
        """Wait until its work has ended, and let it go."""
        while (status := self.ask("join", 1.0)).phase != "ended":
            pass
        self._pipe.close()
        self._process.join()
        return status

    def kill(self) -> None:
        assert self._process.pid is not None
        os.kill(self._process.pid, signal.SIGKILL)
        self._process.join()
        assert self._process.exitcode == -signal.SIGKILL


def _serve(pipe: Connection, order: HostOrder) -> None:
    host = WorkloadHost(order)
    with suppress(EOFError):
        while True:
            verb, arguments = pipe.recv()
            pipe.send(getattr(host, verb)(*arguments))


def replay(context: Any, order: HostOrder, stops: Mapping[int, Path]) -> Mapping[str, Any]:
    """Run the work once more, in one go and without a gate, and save it after so many units; returns its result."""
    here, there = context.Pipe()
    process = context.Process(target=_replay, args=(there, order, dict(stops)), daemon=True)
    process.start()
    there.close()
    result = here.recv()
    process.join()
    return result


def _replay(pipe: Connection, order: HostOrder, stops: dict[int, Path]) -> None:
    folder = order.folder / "work"
    folder.mkdir(parents=True)
    work = make_work(order.spec, order.factory.argument[0], folder)
    while work.step(1):
        progress: Progress = work.progress()
        if progress.total and progress.done in stops:
            checkpoints.write(stops[progress.done], work)
    pipe.send(dict(work.result()))


def placed(order: HostOrder, folder: Path, **changes: Any) -> HostOrder:
    """The order for a workload with a folder of its own."""
    factory = replace(order.factory, argument=(order.factory.argument[0], folder))
    return replace(order, folder=folder, factory=factory, **changes)
