"""Vectors of items that a release was not trained on, from its item tower: an unknown id, and the item's fields."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from configs.errors import ArtifactError
from features.batches import ItemBatch
from features.encoding import Encoder
from recall.two_tower import ItemTower, TowerShape

PREFIX = "item."


class ItemEncoder:
    """The item tower of a release.

    Args:
        weights: file of both towers (`recall.pipeline.TOWER_FILE`); what is not read of it stays on disk.
    Raises:
        ArtifactError: the file is missing or not one of this release's towers.
    """

    def __init__(self, weights: Path, encoder: Encoder):
        try:
            state = torch.load(weights, map_location="cpu", weights_only=True, mmap=True)
            own = {name.removeprefix(PREFIX): value for name, value in state.items() if name.startswith(PREFIX)}
            with torch.device("meta"):
                self._tower = ItemTower(TowerShape.of(encoder), own["id.weight"].shape[1])
            self._tower.load_state_dict(own, assign=True)
        except (OSError, KeyError, RuntimeError, AttributeError, ValueError) as error:
            raise ArtifactError(f"{weights}: no towers of this release ({error}); rebuild the release") from error
        self._tower.eval()

    @torch.inference_mode()
    def __call__(self, items: ItemBatch) -> np.ndarray:
        """Vectors [n, D] float32 of encoded items."""
        return self._tower({name: torch.from_numpy(array) for name, array in items.inputs().items()}).numpy()
