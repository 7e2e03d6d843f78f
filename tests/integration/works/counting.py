"""A work for tests: it counts, slowly, and keeps a diary of its starts and checkpoints. Workers import it by name."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from configs.errors import DataError
from pool.work import Progress


class Counting:
    """Counts to ``total``, a millisecond for each unit."""

    def __init__(self, total: int, diary: Path):
        self.done, self._total, self._diary = 0, total, diary
        self._write("start", 0)

    def step(self, units: int) -> int:
        units = min(units, self._total - self.done)
        end_ns = time.thread_time_ns() + units * 1_000_000
        while time.thread_time_ns() < end_ns:
            pass
        self.done += units
        return units

    def progress(self) -> Progress:
        return Progress(self.done, self._total, "counting")

    def save(self, folder: Path) -> None:
        (folder / "done.json").write_text(json.dumps({"done": self.done, "at_s": time.time()}))

    def restore(self, folder: Path) -> None:
        saved = json.loads((folder / "done.json").read_text())
        self.done = saved["done"]
        self._write("resume", saved["at_s"])

    def result(self) -> dict[str, int]:
        return {"counted": self.done}

    def _write(self, what: str, saved_at_s: float) -> None:
        entry = {"what": what, "pid": os.getpid(), "done": self.done, "saved_at_s": saved_at_s, "at_s": time.time()}
        with self._diary.open("a", encoding="utf-8") as file:
            file.write(json.dumps(entry) + "\n")


def make_work(spec, argument, folder: Path) -> Counting:
    """``argument``: folder of the diaries. The model says how far to count, or how to fail."""
    if spec.model == "dies":
        os.abort()
    if spec.model == "fails":
        raise DataError("there is nothing to count")
    return Counting(int(spec.model), Path(argument) / f"{spec.name}.jsonl")
