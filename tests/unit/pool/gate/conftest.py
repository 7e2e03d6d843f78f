"""Gates in a folder of their own, and other processes that use them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from pool.device import Device, Topology
from pool.gate.segment import GateSegment

CHILD = """
import sys, time
from pathlib import Path
from pool.gate.segment import GateSegment
segment = GateSegment.open(Path(sys.argv[1]), "cpu-0")
def say(*words):
    print(*words, flush=True)
"""
"""What every child begins with; its own lines follow."""


@pytest.fixture
def device() -> Device:
    return Device("cpu-0", "cpu", 1 << 30, Topology("node"), cores=(0,))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "gates"


@pytest.fixture
def segment(folder: Path, device: Device) -> GateSegment:
    return GateSegment.create(folder, device)


@pytest.fixture
def child(folder: Path, segment: GateSegment) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Starts a process that runs lines of code with `segment` open; it is killed when the test ends."""
    children: list[subprocess.Popen[str]] = []

    def start(lines: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-c", CHILD + lines, str(folder)]
        children.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return children[-1]

    yield start
    for process in children:
        process.kill()
        process.communicate()
