"""What a workload does, as plain Python in small units, so that it can give way between any two of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol


@dataclass(frozen=True)
class Progress:
    """How far a work has come.

    Attributes:
        done, total: units; total 0 where there is no end to it.
        doing: the part it is at, for people.
        figures: measured on the way, by name.
    """

    done: int
    total: int
    doing: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)

    @property
    def share(self) -> float:
        """In [0, 1]."""
        return min(1.0, self.done / self.total) if self.total else 0.0


class Work(Protocol):
    """Implemented where the models are; run by `pool.runtime`'s workload actor, or in a plain loop.

    What it computes must not depend on how its units are grouped into steps, nor on where it is stopped:
    restored from a checkpoint it ends with the same bits as without the interruption.
    """

    def step(self, units: int) -> int:
        """Do up to so many units; returns how many were done, 0 once there is nothing left to do."""
        ...

    def progress(self) -> Progress: ...

    def save(self, folder: Path) -> None:
        """Write a checkpoint into an empty folder."""
        ...

    def restore(self, folder: Path) -> None:
        """Go on from a checkpoint of the same work. Raises ArtifactError when it is damaged or of another work."""
        ...

    def result(self) -> Mapping[str, Any]:
        """What came out of it, JSON-able, once `step` returned 0; this may take long and is done once."""
        ...
