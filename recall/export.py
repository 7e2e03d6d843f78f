"""The towers as ONNX files."""

from __future__ import annotations

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
    tower.eval()
    arrays = sample.inputs()
    names = tower_inputs(shape)
    values = tuple(torch.from_numpy(np.ascontiguousarray(arrays[name])) for name in names)
    axes = {name: {0: "batch"} for name in (*names, VECTOR)}
    for name in ("history", "signal"):
        axes[name][1] = "events"
    export_onnx(_Positional(tower, names).eval(), values, names, [VECTOR], axes, path)
    return _check_parity(tower, names, arrays, path)


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
    tower.eval()
    arrays = sample.inputs()
    names = list(arrays)
    values = tuple(torch.from_numpy(np.ascontiguousarray(arrays[name])) for name in names)
    axes = {name: {0: "batch"} for name in (*names, ITEM_VECTOR)}
    export_onnx(_Positional(tower, names).eval(), values, names, [ITEM_VECTOR], axes, path)
    with torch.no_grad():
        expected = tower(dict(zip(names, values, strict=True))).numpy()
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    worst = 0.0
    for rows in (slice(None), slice(0, 1)):
        (found,) = session.run([ITEM_VECTOR], {name: array[rows] for name, array in arrays.items()})
        worst = max(worst, float(np.abs(np.asarray(found) - expected[rows]).max(initial=0.0)))
    _require_parity(worst, expected, path)
    return worst


def _check_parity(tower: UserTower, names: list[str], arrays: dict[str, np.ndarray], path: Path) -> float:
    with torch.no_grad():
        expected = tower({name: torch.from_numpy(np.ascontiguousarray(arrays[name])) for name in names}).numpy()
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    worst = 0.0
    fewest = int(np.argmin((arrays["history"] > 0).sum(1)))
    for rows in (slice(None), slice(0, 1), slice(fewest, fewest + 1)):
        events = max(1, int((arrays["history"][rows] > 0).sum(1).max(initial=0)))
        given = {name: arrays[name][rows] for name in names}
        given |= {name: given[name][:, :events] for name in ("history", "signal")}
        (found,) = session.run([VECTOR], given)
        worst = max(worst, float(np.abs(np.asarray(found) - expected[rows]).max(initial=0.0)))
    _require_parity(worst, expected, path)
    return worst


def _require_parity(worst: float, expected: np.ndarray, path: Path) -> None:
    if worst > TOLERANCE * max(1.0, float(np.abs(expected).max(initial=0.0))):
        raise ArtifactError(f"{path}: ONNX differs from torch by {worst:.2g}; the export is wrong, rebuild the release")
