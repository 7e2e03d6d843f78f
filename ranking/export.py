"""Rankers to ONNX."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from ranking.graphs import CrossGraph, UserGraph

OPSET = 17
MODEL_FILE = "1/model.onnx"
"""Path below a model's folder: version 1 in the layout that Triton reads."""


def example_inputs(graph: UserGraph) -> tuple[Tensor, ...]:
    """Two valid users with one event each, in the dtypes that `features.encoding.UserBatch` has.

    One place of history more than the model reads, so that the cut is part of the graph.
    """
    spec = graph.model.spec
    history = torch.zeros(2, spec.history + 1, dtype=torch.int32)
    history[:, 0] = 1
    shapes = {
        "user_cat": torch.ones(2, len(spec.user_cat), dtype=torch.int32),
        "user_num": torch.zeros(2, spec.user_num),
        "user_multi": torch.ones(2, len(spec.user_multi), 2, dtype=torch.int32),
        "history": history,
        "signal": (history * 2).to(torch.int8),
    }
    return tuple(shapes[name] for name in graph.inputs)


def export_ranker(user: UserGraph, cross: CrossGraph, item_width: int, folder: Path, name: str) -> None:
    """Write ``<name>_user`` and ``<name>_cross`` below ``folder``; the numbers of users and candidates are free."""
    user.eval()
    cross.eval()
    inputs = example_inputs(user)
    with torch.no_grad():
        parts = user(*inputs)
    batch = {0: "batch"}
    free = {"user_multi": {2: "values"}, "history": {1: "events"}, "signal": {1: "events"}}
    user_axes = {**{n: {**batch, **free.get(n, {})} for n in user.inputs}, **dict.fromkeys(user.names, batch)}
    _export(user, inputs, user.inputs, user.names, user_axes, folder / f"{name}_user" / MODEL_FILE)
    candidates = {0: "batch", 1: "candidates"}
    cross_axes = {**dict.fromkeys(user.names, batch), "item_state": candidates, "objectives": candidates}
    states = (*parts, torch.zeros(2, 3, item_width))
    _export(cross, states, cross.inputs, cross.names, cross_axes, folder / f"{name}_cross" / MODEL_FILE)


def _export(
    graph: nn.Module,
    inputs: tuple[Tensor, ...],
    names: Sequence[str],
    outputs: Sequence[str],
    axes: dict[str, dict[int, str]],
    path: Path,
) -> None:
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
            dynamic_axes=axes,
            opset_version=OPSET,
            dynamo=False,
        )
