"""What is trained: the real fine-tune, and two works bound by one part of the device each."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from configs.errors import ConfigError
from configs.settings import Settings
from pool.work import Progress, Work
from pool.workload import WorkloadSpec
from serving.works.registry import make_work

SIDE = 192
"""Of the square matrices that a unit of the work bound by arithmetic multiplies: about half a millisecond."""
CELLS, GATHERED = 1 << 26, 1 << 14
"""Of the table that the work bound by memory reads from, 256 MB, and how many of them a unit reads at random."""
FINETUNE = "finetune"
WARM_UP = 100
"""Units after reading: the first sets up the trainer, with which torch imports its compiler."""
EPOCHS = 1_000
"""Of a fine-tune: training of its first model goes on for as long as anybody measures it."""


class _Endless:
    """Counts units that leave nothing behind but their count."""

    def __init__(self) -> None:
        self._done = 0

    def step(self, units: int) -> int:
        for _ in range(units):
            self._unit()
        self._done += units
        return units

    def progress(self) -> Progress:
        return Progress(self._done, 1 << 62)

    def save(self, folder: Path) -> None:
        (folder / "done.json").write_bytes(orjson.dumps(self._done))

    def restore(self, folder: Path) -> None:
        self._done = orjson.loads((folder / "done.json").read_bytes())

    def result(self) -> Mapping[str, Any]:
        return {}

    def _unit(self) -> None:
        raise NotImplementedError


class ComputeWork(_Endless):
    """Bound by arithmetic: products of matrices that stay in the nearest cache."""

    def __init__(self) -> None:
        super().__init__()
        self._matrix = np.full((SIDE, SIDE), 1 / SIDE, np.float32)

    def _unit(self) -> None:
        np.matmul(self._matrix, self._matrix)


class MemoryWork(_Endless):
    """Bound by memory: reads at random from a table much larger than any cache, and evicts everybody from those."""

    def __init__(self) -> None:
        super().__init__()
        self._table = np.ones(CELLS, np.float32)
        self._places = np.random.default_rng(0).integers(CELLS, size=GATHERED)

    def _unit(self) -> None:
        self._places += GATHERED * 61 + 1
        self._places %= CELLS
        self._table[self._places].sum()


def make(kind: str, settings: Settings, folder: Path) -> Work:
    """A work of one of `KINDS`; raises ConfigError for another."""
    if kind == FINETUNE:
        return make_work(finetune(), settings, folder)
    if kind not in SYNTHETIC:
        raise ConfigError(f"trainer {kind!r}: known are {', '.join(KINDS)}")
    return SYNTHETIC[kind]()


def finetune() -> WorkloadSpec:
    """As a user would submit it, but for its length."""
    return WorkloadSpec(name="trainer", kind="finetune", model="all", options={"epochs": EPOCHS})


def read(work: Work) -> None:
    """Do the units that every process does for itself, before or after a checkpoint."""
    while not work.progress().total:
        work.step(1)


def begin(work: Work) -> None:
    """Do what comes once, reading and setting up, so that the units that follow are alike."""
    read(work)
    work.step(WARM_UP)


SYNTHETIC = {"compute": ComputeWork, "memory": MemoryWork}
KINDS = (FINETUNE, *SYNTHETIC)
