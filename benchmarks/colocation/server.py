"""The process that serves: the whole request path behind HTTP, on one device, as a pool's guaranteed member."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import uvicorn
import uvloop

from benchmarks.colocation.arms import Arm, stretch
from benchmarks.gate_members import running
from configs.settings import Settings
from pool.device import CAPACITY_MILLI, Device
from pool.gate.cpu import enter_device
from pool.gate.segment import GateSegment
from serving.http import build_http
from serving.lanes import Gate
from serving.service import Service

WORKLOAD = "inference"


@dataclass(frozen=True)
class Usage:
    """What a server did up to a time.

    Attributes:
        at_s: monotonic seconds. cpu_s: processor time of the process, HTTP included.
        batches: int64 [N, 2], monotonic ns at which each batch began and ended, since the last reading.
    """

    at_s: float
    cpu_s: float
    batches: np.ndarray


@dataclass(frozen=True)
class Server:
    """A serving process, as the benchmark talks to it."""

    pipe: Connection
    port: int

    def serve_as(self, arm: Arm) -> None:
        """Share the device as the arm says, from the next batch on."""
        self._ask(("arm", arm))

    def usage(self) -> Usage:
        return self._ask(("usage", None))

    def _ask(self, what: tuple[str, Any]) -> Any:
        self.pipe.send(what)
        return self.pipe.recv()


@contextmanager
def serving(settings: Settings, folder: Path, device: Device) -> Iterator[Server]:
    """A server on a device whose gate lies in the folder, until the block ends."""
    with running(_serve, settings, folder, device) as pipe:
        yield Server(pipe, pipe.recv())


class Watched:
    """A gate that keeps when batches began and ended, over the one that they pass, if any.

    Implements `serving.lanes.Gate` for one lane. With a fixed part of the device a batch takes as long as on a
    device that much smaller: it holds its answer back, and computes nothing, for the part of the time that is not its.
    """

    def __init__(self, gate: Gate | None = None, milli: int = CAPACITY_MILLI):
        self._gate, self._milli = gate, milli
        self._batches: list[tuple[int, int]] = []

    def busy(self) -> AbstractContextManager[None]:
        return self._busy()

    def taken(self) -> np.ndarray:
        """The batches since the last time; [N, 2] int64."""
        batches, self._batches = self._batches, []
        return np.array(batches, np.int64).reshape(-1, 2)

    @contextmanager
    def _busy(self) -> Iterator[None]:
        with self._gate.busy() if self._gate is not None else nullcontext():
            begun_ns, used_ns = time.monotonic_ns(), time.thread_time_ns()
            yield
            used_ns = time.thread_time_ns() - used_ns
        stretch(used_ns, self._milli)
        self._batches.append((begun_ns, time.monotonic_ns()))


def _serve(pipe: Connection, settings: Settings, folder: Path, device: Device) -> None:
    enter_device(device, "guaranteed")
    uvloop.run(_run(pipe, settings, folder, device))


async def _run(pipe: Connection, settings: Settings, folder: Path, device: Device) -> None:
    service = Service(settings)
    await service.start()
    assert service.ready, service.why_not_ready
    config = uvicorn.Config(
        build_http(service, settings.serving), http="httptools", lifespan="off", access_log=False, log_level="warning"
    )
    server = uvicorn.Server(config)
    with socket.create_server((settings.serving.host, 0)) as listener:
        threading.Thread(target=_obey, args=(pipe, service, server, folder, device), daemon=True).start()
        pipe.send("ready")
        pipe.send(listener.getsockname()[1])
        await server.serve(sockets=[listener])
    await service.close()


def _obey(pipe: Connection, service: Service, server: uvicorn.Server, folder: Path, device: Device) -> None:
    """Do as the benchmark says, on a thread of its own, until it is told to stop."""
    with GateSegment.open(folder, device.id).join(WORKLOAD, "guaranteed", CAPACITY_MILLI // 2) as slot:
        watched = Watched()
        service.pass_gate(watched)
        with suppress(EOFError):  # the benchmark is gone
            while (told := pipe.recv()) != "stop":
                what, arm = told
                if what == "arm":
                    watched = Watched(slot if arm.is_gated else None, arm.serving_milli)
                    service.pass_gate(watched)
                    pipe.send("done")
                else:
                    pipe.send(Usage(time.monotonic(), time.process_time(), watched.taken()))
        service.pass_gate(None)
    server.should_exit = True
