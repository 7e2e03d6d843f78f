"""torch modules to ONNX files, the same way for every model."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

OPSET = 17


def export_onnx(
    graph: nn.Module,
    inputs: tuple[Tensor, ...],
    names: Sequence[str],
    outputs: Sequence[str],
    axes: Mapping[str, Mapping[int, str]],
    path: Path,
) -> None:
    """Write a module that takes tensors by position.

    Args:
        inputs: an example, in the order of ``names``.
        outputs: names of what the module returns.
        axes: by input or output, the axes whose length is free, with a name for each.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings(), torch.no_grad():
        # The tracing exporter is called legacy, but it keeps free axes without shape constraints.
        warnings.simplefilter("ignore")
        torch.onnx.export(
            graph,
            inputs,
            str(path),
            input_names=list(names),
            output_names=list(outputs),
            dynamic_axes={name: dict(free) for name, free in axes.items()},
            opset_version=OPSET,
            dynamo=False,
        )
