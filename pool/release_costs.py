"""What the models of a release cost by their graphs, counted once for each release, beside everything else.

    python -m pool.release_costs <folder of the version> <candidates of coarse rank> <of fine rank>

prints the costs of one row, by model, as JSON. `ReleaseCosts` has it run at low priority: counting takes ONNX
Runtime and seconds, of which a controller has neither to spare.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from configs.errors import RecpoolError
from pool.policy.latency import GraphCosts
from pool.repository import ReleaseRepository

log = logging.getLogger("recpool.pool")
FUNNEL = "funnel"
"""All models of a release together, each as often as one recommendation calls it."""
PARTS = {
    "recall": ("user_tower",),
    "coarse": ("coarse_user", "coarse_cross"),
    "fine": ("fine_user", "fine_cross"),
}
"""Files below ``models/`` that a model of that name is made of."""
EVENTS = 64
"""Length of a history that costs are counted for; models take any."""
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class ReleaseShape:
    """Where releases are, and how many candidates of one row each ranker sees."""

    folder: Path
    coarse_candidates: int
    fine_candidates: int


Count = Callable[[ReleaseShape, str], Mapping[str, GraphCosts]]


class ReleaseCosts:
    """Costs by model and version; what was not counted yet is being counted, and None until then.

    Args:
        count: the costs of one version, by model; takes as long as it likes.
    """

    def __init__(self, shape: ReleaseShape, count: Count | None = None):
        self._shape, self._count = shape, count or count_elsewhere
        self._repository = ReleaseRepository(shape.folder)
        self._counted: dict[str, Mapping[str, GraphCosts] | None] = {}
        self._lock = threading.Lock()

    def version(self, version: str | None) -> str | None:
        """The one named, else the champion; None when no release serves, or nobody can tell which."""
        try:
            return version or self._repository.champion()
        except RecpoolError:
            return None

    def costs(self, model: str, version: str | None) -> GraphCosts | None:
        """Of one row; None for an unknown model or version, and until it is counted. Returns at once."""
        known = self.version(version)
        if known is None:
            return None
        with self._lock:
            if known not in self._counted:
                self._counted[known] = None
                threading.Thread(target=self._learn, args=(known,), name="graph-costs", daemon=True).start()
            return (self._counted[known] or {}).get(model)

    def _learn(self, version: str) -> None:
        """The edge of the counting thread. What cannot be counted stays unknown until the controller starts again."""
        try:
            counted = self._count(self._shape, version)
        except Exception as error:  # whatever a damaged release raises
            log.warning("release %s: its graphs cannot be counted, so costs come from measurements: %s", version, error)
            return
        with self._lock:
            self._counted[version] = counted


def count_elsewhere(shape: ReleaseShape, version: str) -> dict[str, GraphCosts]:
    """The costs of a version, counted by a process of low priority.

    Raises:
        NotFound: no such version. subprocess.SubprocessError: it took too long, or ended badly.
    """
    folder = ReleaseRepository(shape.folder).path(version)
    numbers = [str(shape.coarse_candidates), str(shape.fine_candidates)]
    done = subprocess.run(
        [sys.executable, "-m", "pool.release_costs", str(folder), *numbers],
        capture_output=True,
        timeout=TIMEOUT_S,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=True,
    )
    return {name: GraphCosts(**costs) for name, costs in json.loads(done.stdout.splitlines()[-1]).items()}


def release_costs(folder: Path, coarse_candidates: int, fine_candidates: int) -> dict[str, GraphCosts]:
    """Costs of one row of each model that a version's folder holds, and of the whole funnel.

    Raises ArtifactError for a damaged model.
    """
    from pool.graph_costs import graph_costs  # ONNX Runtime is wanted in the counting process alone

    candidates = {"coarse": coarse_candidates, "fine": fine_candidates}
    found: dict[str, GraphCosts] = {}
    for model, parts in PARTS.items():
        axes = {"events": EVENTS, "keys": EVENTS, "candidates": candidates.get(model, 1)}
        files = [folder / "models" / part / "1" / "model.onnx" for part in parts]
        if all(file.is_file() for file in files):
            found[model] = together(graph_costs(file, 1, axes) for file in files)
    if len(found) == len(PARTS):
        found[FUNNEL] = together(found.values())
    return found


def together(costs: Iterable[GraphCosts]) -> GraphCosts:
    """Costs of models that are called one after the other, for the same rows."""
    parts = list(costs)
    return GraphCosts(
        flops=sum(each.flops for each in parts),
        parameters=sum(each.parameters for each in parts),
        weight_bytes=sum(each.weight_bytes for each in parts),
        activation_bytes=sum(each.activation_bytes for each in parts),
        has_attention=any(each.has_attention for each in parts),
        table_bytes=sum(each.table_bytes for each in parts),
        batch_rows=parts[0].batch_rows,
    )


def main(arguments: list[str]) -> None:
    """See the module."""
    folder, coarse_candidates, fine_candidates = arguments
    os.nice(19)
    counted = release_costs(Path(folder), int(coarse_candidates), int(fine_candidates))
    print(json.dumps({name: asdict(costs) for name, costs in counted.items()}))


if __name__ == "__main__":
    main(sys.argv[1:])
