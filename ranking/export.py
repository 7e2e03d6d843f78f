"""Rankers to ONNX, compared with torch as they are written."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from configs.errors import ArtifactError
from pool.engines.export import export_onnx
from pool.engines.onnx import OnnxEngine
from ranking.graphs import CrossGraph, UserGraph

MODEL_FILE = "1/model.onnx"
"""Path below a model's folder: version 1 in the layout that Triton reads."""
TOLERANCE = 1e-5
"""Largest difference to torch, relative to the largest objective (and absolute below 1)."""
PARITY_USERS, PARITY_ITEMS, PARITY_FEW = 16, 32, 4


def sample_users(graph: UserGraph, rows: int, seed: int = 0) -> tuple[Tensor, ...]:
    """Valid users at random, the first without history, in the dtypes that `features.encoding.UserBatch` has.

    One place of history more than the model reads, so that the cut is part of the graph.
    """
    spec, random = graph.model.spec, torch.Generator().manual_seed(seed)

    def below(sizes: Sequence[int], *shape: int) -> Tensor:
        draws = [torch.randint(size, (rows, *shape), generator=random, dtype=torch.int32) for size in sizes]
        return torch.stack(draws, 1) if draws else torch.zeros((rows, 0, *shape), dtype=torch.int32)

    places = torch.arange(spec.history + 1)
    filled = places < torch.linspace(0, spec.history + 1, rows).unsqueeze(1)
    history = torch.where(filled, below(spec.item_cat[:1], len(places))[:, 0].clamp(min=1), 0)
    arrays = {
        "user_cat": below(spec.user_cat),
        "user_num": torch.randn(rows, spec.user_num, generator=random),
        "user_multi": below(spec.user_multi, 2),
        "history": history,
        "signal": torch.where(filled, below([2], len(places))[:, 0] + 1, 0).to(torch.int8),
    }
    return tuple(arrays[name] for name in graph.inputs)


def export_ranker(user: UserGraph, cross: CrossGraph, item_states: np.ndarray, folder: Path, name: str) -> float:
    """Write ``<name>_user`` and ``<name>_cross`` below ``folder``; numbers of users, events and candidates are free.

    Args:
        item_states: [I + 2, Di] float32, some of which are scored for the comparison.
    Returns:
        the largest absolute difference between the objectives of torch and of ONNX Runtime.
    Raises:
        ArtifactError: the difference is above `TOLERANCE`.
    """
    user.eval()
    cross.eval()
    inputs = sample_users(user, 2)
    with torch.no_grad():
        parts = user(*inputs)
    free = {"user_multi": {2: "values"}, "history": {1: "events"}, "signal": {1: "events"}}
    free |= {"user_history": {1: "keys"}, "user_mask": {1: "keys"}}
    user_axes = {name: {0: "batch", **free.get(name, {})} for name in (*user.inputs, *user.names)}
    export_onnx(user, inputs, user.inputs, user.names, user_axes, folder / f"{name}_user" / MODEL_FILE)
    candidates = {0: "batch", 1: "candidates"}
    cross_axes = {**{name: user_axes[name] for name in user.names}, "item_state": candidates, "objectives": candidates}
    states = (*parts, torch.zeros(2, 3, item_states.shape[1]))
    export_onnx(cross, states, cross.inputs, cross.names, cross_axes, folder / f"{name}_cross" / MODEL_FILE)
    return check_parity(user, cross, item_states, folder, name)


def check_parity(user: UserGraph, cross: CrossGraph, item_states: np.ndarray, folder: Path, name: str) -> float:
    """Score a sample with both engines: whole, its last row alone, and users with few events; see `export_ranker`."""
    files = [folder / f"{name}_{half}" / MODEL_FILE for half in ("user", "cross")]
    onnx_user, onnx_cross = map(OnnxEngine, files)
    users = sample_users(user, PARITY_USERS)
    shape = (PARITY_USERS, PARITY_ITEMS)
    items = item_states[np.random.default_rng(0).integers(1, len(item_states), shape)]
    with torch.no_grad():
        expected = cross(*user(*users), torch.from_numpy(items)).numpy()
    worst = 0.0
    few = int((users[user.inputs.index("history")][:PARITY_FEW] > 0).sum(1).max())
    for rows, events in ((slice(None), None), (slice(-1, None), None), (slice(PARITY_FEW), few)):
        named = {given: array[rows].numpy() for given, array in zip(user.inputs, users, strict=True)}
        named |= {name: named[name][:, :events] for name in ("history", "signal")}
        found = onnx_cross.run({**onnx_user.run(named), "item_state": items[rows]})["objectives"]
        worst = max(worst, float(np.abs(found - expected[rows]).max()))
    if not worst <= TOLERANCE * max(1.0, float(np.abs(expected).max())):
        raise ArtifactError(
            f"{files[0].parents[2]}: ONNX differs from torch by {worst:.2g} in {name}_user or {name}_cross; "
            "the export is wrong, rebuild the release"
        )
    return worst
