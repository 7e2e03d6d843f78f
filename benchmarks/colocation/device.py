"""The emulated device, its gate's folder, and a home to serve and train from."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.live import DATA
from configs.settings import Settings, load_settings
from deployments.console import reporting
from deployments.offline import ensure_dataset, ensure_release, ensure_store
from pool.device import Device, Topology
from pool.gate.segment import GateSegment

MEMORY_BYTES = 4 << 30
PATIENT = {"shrink_above_ms": 10_000, "max_wait_ms": 10_000}
"""Requests are neither given less quality nor refused: every arm does the same work, however late."""
ONE_THREAD: dict[str, str] = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""A device is one core. Libraries read these when they load, in the processes started from here."""


def cores() -> list[int]:
    """Those that this process may use."""
    return sorted(os.sched_getaffinity(0))


def emulated(name: str, core: int) -> Device:
    """A device that is one core."""
    return Device(name, "gpu", MEMORY_BYTES, Topology("local"), (core,), emulated=True)


@contextmanager
def on_core(core: int) -> Iterator[None]:
    """Keep this process, and those it starts meanwhile, on one core."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


@contextmanager
def gates(*devices: Device) -> Iterator[Path]:
    """A folder with the gates of the devices."""
    with tempfile.TemporaryDirectory(prefix="recpool-gates-", dir="/dev/shm") as folder:
        for device in devices:
            GateSegment.create(Path(folder), device).close()
        yield Path(folder)


@contextmanager
def home() -> Iterator[Settings]:
    """Settings of a home of its own, with a copy of the default one's data; what is missing there is made first."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an ended benchmark ends what it started, too
    settings = load_settings()
    with reporting() as report:
        ensure_dataset(settings, report)
        ensure_release(settings, report)
        ensure_store(settings, report)
    with tempfile.TemporaryDirectory(prefix="recpool-colocation-") as folder:
        for name in DATA:
            shutil.copytree(settings.home / name, Path(folder) / name)
        yield load_settings(overrides={"home": folder, "overload": PATIENT})
