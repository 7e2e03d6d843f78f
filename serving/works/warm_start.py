"""Weights of a published release for models of another dataset: rows of tables follow their values."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from configs.errors import ArtifactError, ConfigError
from features.encoding import FIRST_KNOWN, UNKNOWN, Encoder, Vocabulary
from recall.pipeline import TOWER_FILE

WEIGHTS = {"tower": f"recall/{TOWER_FILE}", "fine": "ranking/fine.pt", "coarse": "ranking/coarse.pt"}
"""Files of a release that a warm start reads, by model."""

_FIELD_TABLE = re.compile(
    r"(?P<side>user_fields|item_fields|user\.profile|item\.features)\.(?P<kind>cat|multi)\.(?P<k>\d+)"
)
_ITEM_TABLES = ("history.items.weight", "item_bias.weight", "user.history.weight", "item.id.weight")


def check_weights(release: Path) -> None:
    """Raise ArtifactError, naming file and remedy, when a release lacks weights of a model."""
    for name in WEIGHTS.values():
        if not (release / name).is_file():
            raise ArtifactError(
                f"start_from: release {release.name} has no {name}, as those published by an earlier build; publish "
                "one with `recpool train` to begin with, or leave start_from out"
            )


def read_weights(release: Path, model: str) -> dict[str, Tensor]:
    """Raises ArtifactError when the file holds no state of a model."""
    file = release / WEIGHTS[model]
    try:
        return torch.load(file, weights_only=True)
    except Exception as error:  # torch raises classes of its own for each kind of damage
        raise ArtifactError(f"{file}: not readable weights ({error}); start from another release") from error


def start_from(model: nn.Module, old: Mapping[str, Tensor], trained: Encoder, encoder: Encoder) -> None:
    """Copy weights into the model; rows of values that the old encoder did not know keep their own start.

    Args:
        old: state of a model of the same shape but for the rows of its tables.
        trained, encoder: what gave the old and the new model their indices.
    Raises:
        ConfigError: the models differ in more than their vocabularies; names the first weight.
    """
    for name, weight in model.state_dict().items():
        if name not in old or old[name].shape[1:] != weight.shape[1:]:
            raise ConfigError(
                f"start_from: weight {name} is {tuple(weight.shape)} here and "
                f"{tuple(old[name].shape) if name in old else 'absent'} in the release; use the recipe and schema that "
                "it was trained with"
            )
        rows = _rows(name, trained, encoder)
        if rows is None and old[name].shape != weight.shape:
            raise ConfigError(f"start_from: weight {name} has another shape in the release; use its recipe")
        if rows is None:
            weight.copy_(old[name])
        else:
            here = torch.from_numpy(np.flatnonzero(rows >= 0))
            weight[here] = old[name][torch.from_numpy(rows[rows >= 0])]


def _rows(name: str, trained: Encoder, encoder: Encoder) -> np.ndarray | None:
    """[rows] int64: where each row of a table was in the old one, -1 for new values; None for what is no table."""
    found = _vocabularies(name, trained, encoder)
    if found is None:
        return None
    old, new = found
    rows = old.indices(new.values).astype(np.int64)
    return np.concatenate([np.arange(FIRST_KNOWN), np.where(rows == UNKNOWN, -1, rows)])


def _vocabularies(name: str, trained: Encoder, encoder: Encoder) -> tuple[Vocabulary, Vocabulary] | None:
    """Those that index a table of weights, by its name in the models."""
    if name in _ITEM_TABLES:
        return trained.item_ids, encoder.item_ids
    if name == "user_bias.weight":
        return trained.user_ids, encoder.user_ids
    table = _FIELD_TABLE.match(name)
    if table is None:
        return None
    of_item, in_tower = table["side"].startswith("item"), "." in table["side"]
    column = int(table["k"])
    if table["kind"] == "cat" and not in_tower:
        if column == 0:
            return (trained.item_ids, encoder.item_ids) if of_item else (trained.user_ids, encoder.user_ids)
        column -= 1
    entities = ("item",) if of_item else ("user",) if in_tower or table["kind"] == "multi" else ("user", "context")
    kind = "categorical" if table["kind"] == "cat" else "multi"
    fields = [e.schema.of(*entities, kind=kind)[column] for e in (trained, encoder)]  # type: ignore[arg-type]
    return trained.vocabulary(fields[0]), encoder.vocabulary(fields[1])
