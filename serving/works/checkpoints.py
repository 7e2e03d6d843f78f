"""Checkpoints of a work: numbered folders that are wholly there or not at all.

    <folder>/checkpoint-00000007/complete.json    names and sizes of all files, written last
    <folder>/checkpoint-00000007/state.json       whose checkpoint it is, and plain values
    <folder>/checkpoint-00000007/tensors.pt       torch, read with weights_only
    <folder>/checkpoint-00000007/arrays.npz       numpy, read without pickles
    <folder>/checkpoint-00000007/...              what else the work keeps

One process writes to a folder at a time; any may read.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch

from configs.errors import ArtifactError
from features.files import atomic_directory
from pool.work import Work

FORMAT = 1
KEPT = 2
COMPLETE, STATE, TENSORS, ARRAYS = "complete.json", "state.json", "tensors.pt", "arrays.npz"
_NAME = re.compile(r"checkpoint-(\d{8})")


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds: plain values, tensors in any nesting, arrays by name."""

    values: Mapping[str, Any]
    tensors: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


def write(folder: Path, work: Work, keep: int = KEPT) -> Path:
    """Save the work as the newest checkpoint, and remove all but the ``keep`` newest; returns its folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for scratch in folder.glob(".checkpoint-*"):  # left by a process that was killed while writing
        shutil.rmtree(scratch, ignore_errors=True)
    found = _checkpoints(folder)
    target = folder / f"checkpoint-{_number(found[-1]) + 1 if found else 1:08d}"
    with atomic_directory(target) as scratch:
        work.save(scratch)
        (scratch / COMPLETE).write_bytes(orjson.dumps({"files": _sizes(scratch)}))
    for old in [*found, target][:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return target


def latest(folder: Path) -> Path | None:
    """The newest complete checkpoint; None when there is none."""
    return next((path for path in reversed(_checkpoints(folder)) if _is_complete(path)), None)


def restore_latest(folder: Path, work: Work) -> Path | None:
    """Restore from the newest checkpoint that can be read, and return it; None when there is no checkpoint.

    Raises:
        ArtifactError: there are complete checkpoints and none can be restored; says why not the oldest.
    """
    failure: ArtifactError | None = None
    for path in reversed(_checkpoints(folder)):
        if _is_complete(path):
            try:
                work.restore(path)
                return path
            except ArtifactError as error:
                failure = error
    if failure is not None:
        raise failure
    return None


def write_state(folder: Path, work: str, saved: Saved) -> None:
    """Write a work's state into its checkpoint's folder."""
    values = {"format": FORMAT, "work": work, "values": saved.values}
    (folder / STATE).write_bytes(orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_INDENT_2))
    if saved.tensors:
        torch.save(dict(saved.tensors), folder / TENSORS)
    if saved.arrays:
        np.savez(folder / ARRAYS, **saved.arrays)  # type: ignore[arg-type]


def read_state(folder: Path, work: str) -> Saved:
    """Raises ArtifactError when the checkpoint is damaged, of another format or of another kind of work."""
    try:
        raw = orjson.loads((folder / STATE).read_bytes())
        if raw["format"] != FORMAT or raw["work"] != work:
            raise ValueError(f"of a {raw['work']} in format {raw['format']}, not of a {work} in {FORMAT}")
        tensors = torch.load(folder / TENSORS, weights_only=True) if (folder / TENSORS).is_file() else {}
        return Saved(raw["values"], tensors, _arrays(folder / ARRAYS))
    except Exception as error:  # torch and numpy raise classes of their own for each kind of damage
        raise ArtifactError(f"{folder}: not a readable checkpoint ({error}); remove it and start again") from error


def check_same(folder: Path, saved: Mapping[str, Any], own: Mapping[str, Any]) -> None:
    """Raise ArtifactError when a checkpoint's values differ from those that make a work what it is."""
    for name, value in own.items():
        if saved.get(name) != orjson.loads(orjson.dumps(value)):
            raise ArtifactError(f"{folder}: a checkpoint of a work with another {name}; use a folder of its own")


def _arrays(file: Path) -> dict[str, np.ndarray]:
    if not file.is_file():
        return {}
    with np.load(file, allow_pickle=False) as arrays:
        return {name: arrays[name] for name in arrays.files}


def _checkpoints(folder: Path) -> list[Path]:
    """Oldest first."""
    found = folder.iterdir() if folder.is_dir() else ()
    return sorted((path for path in found if _NAME.fullmatch(path.name) and path.is_dir()), key=_number)


def _number(path: Path) -> int:
    return int(path.name.rpartition("-")[2])


def _sizes(folder: Path) -> dict[str, int]:
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != COMPLETE)
    return {str(path.relative_to(folder)): path.stat().st_size for path in files}


def _is_complete(folder: Path) -> bool:
    try:
        return orjson.loads((folder / COMPLETE).read_bytes())["files"] == _sizes(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return False
