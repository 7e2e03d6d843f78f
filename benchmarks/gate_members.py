"""The processes of the gate's benchmark: members that share by weight, a trainer, and inference."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from pool.device import Device, Topology
from pool.gate.cpu import enter_device
from pool.gate.segment import GateSegment
from pool.gate.stepper import MicroStepper
from pool.workload import WorkloadPriority

DEVICE_ID = "bench"
SIDE = 256
"""Of the square matrices that inference and a unit of training multiply."""
INFERENCE_PRODUCTS = 2
UNAWARE_UNITS = 100
"""Products in a step of a trainer that knows of no gate."""


def bench_device() -> Device:
    """The last core this process may use."""
    return Device(DEVICE_ID, "cpu", 1 << 30, Topology("local"), (max(os.sched_getaffinity(0)),))


@contextmanager
def running(target: Any, *args: Any) -> Iterator[Connection]:
    """A process that runs target(connection, *args); told to stop, and awaited, at the end."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    process = context.Process(target=target, args=(there, *args))
    process.start()
    try:
        assert here.recv() == "ready"
        yield here
    finally:
        here.send("stop")
        process.join()


def share(pipe: Connection, folder: Path, name: str, priority: WorkloadPriority, weight: int, step_ms: float) -> None:
    """Want the device always; at the end send [turns, 2]: monotonic ns at which each began, and metered ns."""
    seat = enter_device(bench_device(), priority)
    turns: list[tuple[int, int]] = []
    with GateSegment.open(folder, DEVICE_ID).join(name, priority, weight, seat.meter) as slot:
        pipe.send("ready")
        while not pipe.poll():
            turn = slot.wait_turn(1.0)
            if turn is None:
                continue
            with turn:
                end_ns = time.thread_time_ns() + int(step_ms * 1e6)
                while time.thread_time_ns() < end_ns:
                    pass
            turns.append((turn.begun_ns, turn.metered_ns))
    pipe.send(np.array(turns, np.int64).reshape(-1, 2))


def train(pipe: Connection, folder: Path, priority: WorkloadPriority, uses_gate: bool) -> None:
    """Multiply matrices without end, in micro-steps through the gate or in long ones; at the end send units done."""
    seat = enter_device(bench_device(), priority)
    stepper, units = MicroStepper(), 0
    matrix = np.full((SIDE, SIDE), 1 / SIDE, np.float32)
    with ExitStack() as stack:
        slot = None
        if uses_gate:
            segment = GateSegment.open(folder, DEVICE_ID)
            slot = stack.enter_context(segment.join("train", "best_effort", 300, seat.meter))
        pipe.send("ready")
        while not pipe.poll():
            if slot is None:
                units += _multiply(matrix, UNAWARE_UNITS)
            elif turn := slot.wait_turn(0.1):
                with turn:
                    done = _multiply(matrix, stepper.units)
                stepper.observe(done, turn.metered_ns / 1e6)
                units += done
    pipe.send(units)


def infer(pipe: Connection, folder: Path, per_s: float, seconds: float) -> None:
    """Serve Poisson arrivals; then send [requests, 2]: arrival in monotonic s, ms from it to inference."""
    seat = enter_device(bench_device(), "guaranteed")
    gaps_s = np.random.default_rng(0).exponential(1 / per_s, int(per_s * seconds))
    matrix = np.full((SIDE, SIDE), 1 / SIDE, np.float32)
    waited_ms = []
    with GateSegment.open(folder, DEVICE_ID).join("infer", "guaranteed", 300, seat.meter) as slot:
        pipe.send("ready")
        arrival_s, free_s = time.monotonic(), 0.0
        for gap_s in gaps_s:
            arrival_s += gap_s
            time.sleep(max(0.0, arrival_s - time.monotonic()))
            with slot.busy():
                # Behind a request of its own, it could not have begun sooner on any device.
                waited_ms.append((arrival_s, (time.monotonic() - max(arrival_s, free_s)) * 1e3))
                _multiply(matrix, INFERENCE_PRODUCTS)
            free_s = time.monotonic()
    pipe.send(np.array(waited_ms))
    pipe.recv()


def _multiply(matrix: np.ndarray, times: int) -> int:
    product = matrix
    for _ in range(times):
        product = product @ matrix
    return times
