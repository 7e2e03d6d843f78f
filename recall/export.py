"""The towers as ONNX files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnxruntime
import torch
from torch import Tensor, nn

from configs.errors import ArtifactError
from features.encoding import ItemBatch, UserBatch
from pool.engines.export import export_onnx
from recall.two_tower import ItemTower, TowerShape, UserTower

VECTOR, ITEM_VECTOR = "user_vector", "item_vector"
TOLERANCE = 1e-5
"""Largest difference to torch, relative to the largest vector entry (and absolute below 1)."""
WHOLE_AND_ONE = (slice(None), slice(0, 1))
"""Rows that parity is checked on: a batch, and one alone."""


class _Positional(nn.Module):
    """The tower with its inputs by position, as the exporter wants them."""

    def __init__(self, tower: UserTower | ItemTower, names: list[str]):
        super().__init__()
        self.tower, self.names = tower, names

    def forward(self, *arrays: Tensor) -> Tensor:
        return self.tower(dict(zip(self.names, arrays, strict=True)))


def tower_inputs(shape: TowerShape) -> list[str]:
    """Names of the arrays the user tower reads; kinds of field without columns are left out."""
    optional = {"user_cat": shape.user_cat, "user_num": shape.user_num, "user_multi": shape.user_multi}
    return [*(name for name, size in optional.items() if size), "history", "signal"]


def export_user_tower(tower: UserTower, shape: TowerShape, sample: UserBatch, path: Path) -> float:
    """Write the tower with output ``user_vector`` [B, D] float32; numbers of users and of events are free.

    Args:
        sample: at least two encoded rows; they fix the widths and are used for the parity check.
    Returns:
        the largest absolute difference between torch and ONNX Runtime.
    Raises:
        ArtifactError: the difference is above `TOLERANCE`.
    """
    arrays = {name: sample.inputs()[name] for name in tower_inputs(shape)}
    expected = _export(tower, arrays, VECTOR, path, free=("history", "signal"))
    events = (arrays["history"] > 0).sum(1)
    fewest = int(np.argmin(events))
    parts = []
    for rows in (*WHOLE_AND_ONE, slice(fewest, fewest + 1)):
        longest = max(1, int(events[rows].max(initial=0)))
        part = {name: array[rows] for name, array in arrays.items()}
        parts.append((rows, part | {name: part[name][:, :longest] for name in ("history", "signal")}))
    return _parity(expected, parts, VECTOR, path)


def export_item_tower(tower: ItemTower, sample: ItemBatch, path: Path) -> float:
    """Write the tower with output ``item_vector`` [N, D] float32; the number of items is free.

    An item that the tower was not trained on is asked for with the id of the bucket for unknown ones.

    Args:
        sample: at least two encoded rows; they fix the widths and are used for the parity check.
    Returns:
        the largest absolute difference between torch and ONNX Runtime.
    Raises:
        ArtifactError: the difference is above `TOLERANCE`.
    """
    arrays = sample.inputs()
    expected = _export(tower, arrays, ITEM_VECTOR, path)
    parts = [(rows, {name: array[rows] for name, array in arrays.items()}) for rows in WHOLE_AND_ONE]
    return _parity(expected, parts, ITEM_VECTOR, path)


def _export(
    tower: UserTower | ItemTower, arrays: Mapping[str, np.ndarray], output: str, path: Path, free: Sequence[str] = ()
) -> np.ndarray:
    """Write the tower; returns what torch gives for the arrays. ``free``: those whose second axis is the events'."""
    tower.eval()
    tensors = {name: torch.from_numpy(np.ascontiguousarray(array)) for name, array in arrays.items()}
    axes = {name: {0: "batch"} for name in (*arrays, output)}
    for name in free:
        axes[name][1] = "events"
    names = list(arrays)
    export_onnx(_Positional(tower, names).eval(), tuple(tensors.values()), names, [output], axes, path)
    with torch.no_grad():
        return tower(tensors).numpy()


def _parity(
    expected: np.ndarray, parts: Iterable[tuple[slice, dict[str, np.ndarray]]], output: str, path: Path
) -> float:
    """Largest difference between ONNX Runtime and torch over parts of a batch; ArtifactError above `TOLERANCE`."""
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    worst = 0.0
    for rows, given in parts:
        (found,) = session.run([output], given)
        worst = max(worst, float(np.abs(np.asarray(found) - expected[rows]).max(initial=0.0)))
    if worst > TOLERANCE * max(1.0, float(np.abs(expected).max(initial=0.0))):
        raise ArtifactError(f"{path}: ONNX differs from torch by {worst:.2g}; the export is wrong, rebuild the release")
    return worst
