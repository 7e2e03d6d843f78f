"""What a work keeps in a checkpoint's folder (`pool.checkpoints`).

state.json       whose checkpoint it is, and plain values
tensors.pt       torch, read with weights_only
arrays.npz       numpy, read without pickles
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import torch

from configs.errors import ArtifactError

FORMAT = 1
STATE, TENSORS, ARRAYS = "state.json", "tensors.pt", "arrays.npz"


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds: plain values, tensors in any nesting, arrays by name."""

    values: Mapping[str, Any]
    tensors: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, np.ndarray] = field(default_factory=dict)


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
