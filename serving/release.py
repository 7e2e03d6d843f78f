"""A loaded release: what the gateway needs of it. Stages load their own parts from the same folder.

encoder.json        schema, vocabularies, statistics
items.parquet       the catalogue, in item-index order
recall/             index, item vectors, neighbours, popular and fresh lists (written by `recall`)
ranking/            weights and item states (written by `ranking`)
models/<name>/1/model.onnx
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import IO

import numpy as np
import pyarrow.parquet as pq

from configs.errors import ArtifactError
from features.catalogue import Catalogue
from features.encoding import FIRST_KNOWN, Encoder
from features.live_catalogue import LiveCatalogue
from features.row_table import RowTable
from pool.repository import Manifest, ReleaseRepository
from recall.pipeline import POPULAR_FILE
from recall.ranked_lists import RankedLists
from serving.cursor import item_hashes
from serving.types import Candidates


@dataclass(frozen=True)
class Release:
    """Everything a request touches comes from one of these.

    popular [n] int32 item indices, most popular first; vectors [I + 2, D] float32, memory-mapped and
    so shared between the replicas of a host. ``held`` keeps the folder from being removed meanwhile. Items may
    come, change and go while it serves (`features.live_catalogue`); nothing else does.
    """

    folder: Path
    manifest: Manifest
    encoder: Encoder
    catalogue: Catalogue | LiveCatalogue
    popular: np.ndarray
    vectors: np.ndarray | RowTable
    held: IO[bytes] | None = field(default=None, repr=False, compare=False)

    @classmethod
    def load(cls, repository: ReleaseRepository, version: str) -> Release:
        """Verify and load.

        Raises:
            NotFound: no such version.
            ArtifactError: a file is missing, damaged or does not fit the others; names it.
        """
        held = repository.hold(version)
        manifest = repository.verify(version)
        folder = repository.path(version)
        encoder = Encoder.load(folder / "encoder.json")
        items = pq.read_table(folder / "items.parquet")
        popular = RankedLists.load(folder / "recall" / POPULAR_FILE, manifest.items).overall
        vectors = np.load(folder / "recall" / "item_vectors.npy", mmap_mode="r", allow_pickle=False)
        _check_sizes(version, manifest, encoder, len(items), len(vectors))
        catalogue = LiveCatalogue(Catalogue(items, encoder), encoder)
        release = cls(folder, manifest, encoder, catalogue, popular, RowTable(np.asarray(vectors)), held)
        # Sorted here rather than by the first cursor, which would make every caller wait.
        release.items_with_hash(np.zeros(1, np.uint32))
        return release

    @property
    def version(self) -> str:
        return self.manifest.version

    @property
    def objectives(self) -> tuple[str, ...]:
        return self.manifest.objectives

    @property
    def versions(self) -> dict[str, str]:
        """What a reply says of where it came from."""
        return {"release": self.version, "dataset": self.manifest.dataset, "recipe": self.manifest.recipe}

    def popular_candidates(self, rows: int, count: int) -> Candidates:
        """The most popular items for each of ``rows`` users, as if recall had found them; sources are 0."""
        items = np.broadcast_to(self.popular[:count], (rows, min(count, len(self.popular))))
        return Candidates(items, np.zeros(items.shape, np.float32), np.zeros(items.shape, np.uint8))

    def items_with_hash(self, hashes: np.ndarray) -> np.ndarray:
        """Item indices [n] int32 whose cursor hash is among ``hashes``."""
        if not len(hashes):
            return np.zeros(0, np.int32)
        order, known = self._hash_order
        places = np.searchsorted(known, hashes)
        found = places[known[np.minimum(places, len(known) - 1)] == hashes]
        own, known = self._added_hashes()
        return np.concatenate([order[found], own[np.isin(known, hashes)]]).astype(np.int32)

    def _added_hashes(self) -> tuple[np.ndarray, np.ndarray]:
        """Item indices and cursor hashes of the items that came after the release; those hashed before are kept."""
        own, known = self._hashed_items
        added = list(self.catalogue.added().items())[len(own) :]
        if added:
            indices = np.concatenate([own, np.array([index for _, index in added], np.int64)])
            own, known = self._hashed_items[:] = indices, np.concatenate([known, item_hashes([i for i, _ in added])])
        return own, known

    @cached_property
    def _hashed_items(self) -> list[np.ndarray]:
        return [np.zeros(0, np.int64), np.zeros(0, np.uint32)]

    @cached_property
    def _hash_order(self) -> tuple[np.ndarray, np.ndarray]:
        hashes = item_hashes(self.encoder.item_ids.values)
        order = np.argsort(hashes, kind="stable")
        return order + FIRST_KNOWN, hashes[order]


def _check_sizes(version: str, manifest: Manifest, encoder: Encoder, items: int, vectors: int) -> None:
    """Parts of one release that count the catalogue differently are from different releases."""
    counts = {
        "encoder.json": len(encoder.item_ids.values),
        "items.parquet": items,
        "item_vectors.npy": vectors - FIRST_KNOWN,
    }
    for name, found in counts.items():
        if found != manifest.items:
            raise ArtifactError(f"release {version}: {name} has {found} items, the manifest {manifest.items}")
