"""A load in a process of its own, away from the benchmark's own work."""

from __future__ import annotations

import gc
import os
import pickle
import signal
import subprocess
import sys
import time
from types import TracebackType
from typing import Any

import uvloop

from benchmarks.load.plan import Load
from benchmarks.load.run import fire_async
from benchmarks.load.summary import Outcomes

STOP = signal.SIGUSR1
"""Ends a load early."""


class Running:
    """A load under way in a process of its own. Leaving the ``with`` block ends it."""

    def __init__(self, load: Load):
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.load"], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert self._process.stdin is not None and self._process.stdout is not None
        self._out = self._process.stdout
        pickle.dump(load, self._process.stdin)
        self._process.stdin.close()
        self.started_s: float = pickle.load(self._out)
        """time.monotonic() that the load's times count from."""

    def outcomes(self) -> Outcomes:
        """Wait for the end of the load."""
        found = pickle.load(self._out)
        self._process.wait()
        return found

    def stop(self) -> Outcomes:
        """Send nothing more, and wait for what was sent."""
        self._process.send_signal(STOP)
        return self.outcomes()

    def __enter__(self) -> Running:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._process.kill()
        self._process.wait()
        self._out.close()


def start(load: Load) -> Running:
    """Send the load from a process of its own; returns when it has started."""
    return Running(load)


def serve_parent() -> None:
    load: Load = pickle.load(sys.stdin.buffer)
    gc.freeze()
    gc.disable()  # a collection of many outcomes would look like the server's pause
    started_s = time.monotonic() + 0.005

    def say(what: Any) -> None:
        # Not `sys.stdout.buffer`: with PYTHONUNBUFFERED it is raw, and loses what a full pipe does not take at once.
        with os.fdopen(sys.stdout.fileno(), "wb", closefd=False) as out:
            pickle.dump(what, out)

    say(started_s)
    say(uvloop.run(fire_async(load, started_s, STOP)))
