"""Trained rankers on disk, and loaded to score.

ranking/<name>.json            kind, input spec, model config, output ranges
ranking/<name>.pt              weights
ranking/<name>_items.npy       item states [items + 2, Di] float32
models/<name>_user/1/model.onnx
models/<name>_cross/1/model.onnx
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import orjson
import torch

from configs.errors import ArtifactError
from features.compiled import compiled
from features.encoding import ItemBatch, UserBatch
from features.row_table import RowTable
from pool.engines.engine import Engine, Wrap, as_it_is
from pool.engines.onnx import OnnxEngine
from ranking.coarse import CoarseConfig, CoarseRanker
from ranking.export import MODEL_FILE, export_ranker
from ranking.fine import FineConfig, FineRanker
from ranking.graphs import CrossGraph, Outputs, UserGraph
from ranking.inputs import Fields, InputSpec, lists_to_tuples
from ranking.training import Model

KINDS = {"fine": (FineRanker, FineConfig), "coarse": (CoarseRanker, CoarseConfig)}
ITEM_CHUNK = 16_384
LIKE_WIDTH = 0.6
"""Rows at least this share as wide as the widest are padded to it; another call of the model would cost more."""

UserArrays = Mapping[str, np.ndarray]


class TorchEngine:
    """One of `ranking.graphs`' modules behind the same call as an ONNX model."""

    def __init__(self, graph: UserGraph | CrossGraph):
        self._graph = graph.eval()

    @torch.inference_mode()
    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        out = self._graph(*(torch.from_numpy(np.ascontiguousarray(inputs[name])) for name in self._graph.inputs))
        out = out if isinstance(out, tuple) else (out,)
        return {name: tensor.numpy() for name, tensor in zip(self._graph.names, out, strict=True)}


@dataclass(frozen=True)
class Header:
    """What ``<name>.json`` holds."""

    kind: Literal["fine", "coarse"]
    spec: InputSpec
    config: dict[str, Any]
    outputs: Outputs

    @classmethod
    def load(cls, folder: Path, name: str) -> Header:
        """Raises ArtifactError when the file is missing or holds something else."""
        file = folder / "ranking" / f"{name}.json"
        try:
            raw = orjson.loads(file.read_bytes())
            kind = raw["kind"]
            if kind not in KINDS:
                raise ValueError(f"kind {kind!r} is none of {sorted(KINDS)}")
            outputs = Outputs(**lists_to_tuples(raw["outputs"]))
            return cls(kind, InputSpec.from_json(raw["spec"]), raw["config"], outputs)
        except (OSError, KeyError, TypeError, ValueError) as error:
            raise ArtifactError(f"{file}: not a ranker's description ({error}); rebuild the release") from error


@dataclass(frozen=True)
class TrainedRanker:
    """A trained model with what its scores mean."""

    name: Literal["fine", "coarse"]
    model: Model
    outputs: Outputs

    @torch.inference_mode()
    def item_states(self, items: ItemBatch) -> np.ndarray:
        """Item states [N, Di] float32 of encoded items."""
        self.model.eval()
        starts = range(0, len(items), ITEM_CHUNK)
        chunks = [items.take(np.arange(at, min(at + ITEM_CHUNK, len(items)))) for at in starts]
        return torch.cat([self.model.encode_item(Fields.of(chunk)) for chunk in chunks]).numpy()

    def save(self, folder: Path, items: ItemBatch) -> None:
        """Write all files of the ranker below a release's folder; ``items`` is the whole catalogue's table.

        Raises:
            ArtifactError: the ONNX files do not score as the model does.
        """
        place = folder / "ranking"
        place.mkdir(parents=True, exist_ok=True)
        header = Header(self.name, self.model.spec, self.model.config.to_json(), self.outputs)
        (place / f"{self.name}.json").write_bytes(orjson.dumps(asdict(header), option=orjson.OPT_INDENT_2))
        torch.save(self.model.state_dict(), place / f"{self.name}.pt")
        states = self.item_states(items)
        np.save(place / f"{self.name}_items.npy", states)
        graphs = UserGraph(self.model), CrossGraph(self.model, self.outputs)
        export_ranker(*graphs, states, folder / "models", self.name)

    @classmethod
    def load(cls, folder: Path, name: str) -> TrainedRanker:
        """Raises ArtifactError when a file is missing or does not fit the others."""
        header = Header.load(folder, name)
        build, configure = KINDS[header.kind]
        file = folder / "ranking" / f"{name}.pt"
        try:
            model = build(header.spec, configure.from_json(header.config))  # type: ignore[arg-type]
            model.load_state_dict(torch.load(file, weights_only=True))
        except Exception as error:  # torch raises classes of its own for each kind of damage
            raise ArtifactError(f"{file}: not a readable ranker ({error}); rebuild the release") from error
        return cls(header.kind, model.eval(), header.outputs)


class RankStage:
    """A ranker loaded to score: two graphs and the table of item states.

    Args:
        source: folder of the release and name of the ranker, for the model that encodes items.
    """

    def __init__(
        self, user: Engine, cross: Engine, items: np.ndarray, outputs: Outputs, source: tuple[Path, str] | None = None
    ):
        self._user, self._cross, self.outputs = user, cross, outputs
        self._items, self._source = RowTable(items), source
        self._trained: TrainedRanker | None = None

    @classmethod
    def load(
        cls,
        folder: Path,
        name: str,
        engine: Literal["onnx", "torch"] = "onnx",
        threads: int = 1,
        tier: str = "cpu",
        wrap: Wrap = as_it_is,
    ) -> RankStage:
        """Load from a release's folder.

        Args:
            threads: cores one ONNX call may use; torch's own setting is the process's.
            wrap: makes an ONNX model run elsewhere.
        Raises:
            ArtifactError: a file is missing or unreadable; names it.
        """
        file = folder / "ranking" / f"{name}_items.npy"
        try:
            # The mapping as a plain array: numpy's class for mapped ones has a price at every access.
            items = np.asarray(np.load(file, mmap_mode="r", allow_pickle=False))
        except (OSError, ValueError) as error:
            raise ArtifactError(f"{file}: not a readable item table ({error}); rebuild the release") from error
        header = Header.load(folder, name)
        if len(items) != header.spec.item_cat[0]:
            raise ArtifactError(f"{file}: {len(items)} rows, the model has {header.spec.item_cat[0]}")
        if engine == "torch":
            model = TrainedRanker.load(folder, name).model
            user, cross = TorchEngine(UserGraph(model)), TorchEngine(CrossGraph(model, header.outputs))
            return cls(user, cross, items, header.outputs, (folder, name))
        user, cross = (
            wrap(f"{name}_{half}", OnnxEngine(folder / "models" / f"{name}_{half}" / MODEL_FILE, threads, tier))
            for half in ("user", "cross")
        )
        return cls(user, cross, items, header.outputs, (folder, name))

    @property
    def objectives(self) -> tuple[str, ...]:
        return self.outputs.objectives

    def put(self, items: np.ndarray, encoded: ItemBatch) -> None:
        """Have items [n] int32 scored by what they are now; the first time this reads the whole model.

        Raises ArtifactError when the release lacks it, or it is damaged.
        """
        if self._trained is None:
            assert self._source is not None, "only a ranker of a release can encode items"
            self._trained = TrainedRanker.load(*self._source)
        self._items.put(items, self._trained.item_states(encoded))

    def encode_users(self, users: UserBatch) -> UserArrays:
        """User tensors by name, each [B, ...], for any number of calls of `score`."""
        return self._user.run(users.inputs())

    def score(self, users: UserArrays, items: np.ndarray) -> np.ndarray:
        """Objectives [B, C, O] float32 of item indices [B, C]; padding (index 0) gives NaN.

        Unknown items are index 1; one that is not known here yet counts as such.
        """
        assert items.ndim == 2
        if not items.size:
            return np.zeros((*items.shape, len(self.objectives)), np.float32)
        found = self._cross.run({**users, "item_state": self._items.take(items)})["objectives"]
        assert found.shape == (*items.shape, len(self.objectives))
        return _blank_at_padding(np.ascontiguousarray(found, np.float32), np.ascontiguousarray(items, np.int32))

    def rank(self, users: UserBatch, items: np.ndarray) -> np.ndarray:
        """`encode_users` and `score` in one, with histories as wide as the batch's longest.

        Rows with far fewer candidates than others are scored apart from them, not padded to their width.
        """
        # Whoever made the batch has mostly seen to that already.
        if users.history.shape[1] > 1 and not users.history[:, -1].any():
            longest = max(1, *_widths(users.history))
            users = users.with_history(users.history[:, :longest], users.signal[:, :longest])
        encoded, widths = self.encode_users(users), _widths(items)
        if min(widths, default=0) >= max(1, LIKE_WIDTH * max(widths, default=0)):
            return self.score(encoded, items)
        found = np.full((*items.shape, len(self.objectives)), np.nan, np.float32)
        for rows in _of_like_width(widths):
            width = max(widths[row] for row in rows)
            own = {name: array[rows] for name, array in encoded.items()}
            found[rows, :width] = self.score(own, items[rows, :width])
        return found


def _of_like_width(widths: list[int]) -> list[list[int]]:
    """Rows that have candidates, those of like width together; widest first."""
    left = sorted((row for row, width in enumerate(widths) if width), key=lambda row: -widths[row])
    groups: list[list[int]] = []
    while left:
        least = LIKE_WIDTH * widths[left[0]]
        groups.append([row for row in left if widths[row] >= least])
        left = [row for row in left if widths[row] < least]
    return groups


def _widths(items: np.ndarray) -> list[int]:
    """Entries of each row [B, C] up to its last one that is no padding."""
    return _last_ones(np.asarray(items, np.int32)).tolist()


@compiled("int64[::1](Array(int32, 2, 'A', True))")
def _last_ones(items):
    widths = np.zeros(len(items), np.int64)
    for row in range(len(items)):
        width = items.shape[1]
        while width > 0 and items[row, width - 1] == 0:
            width -= 1
        widths[row] = width
    return widths


@compiled("float32[:, :, ::1](Array(float32, 3, 'C', True), Array(int32, 2, 'C', True))")
def _blank_at_padding(objectives, items):
    """A copy of objectives [B, C, O] with NaN where items [B, C] are padding."""
    out = np.empty_like(objectives)
    for row in range(len(items)):
        for place in range(items.shape[1]):
            for k in range(objectives.shape[2]):
                out[row, place, k] = objectives[row, place, k] if items[row, place] != 0 else np.float32(np.nan)
    return out
