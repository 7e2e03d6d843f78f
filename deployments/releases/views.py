"""A rollout as it is told: to people, by HTTP, and in the history of its release."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

PREFIX = "/v1/releases"
ROLLOUT = f"{PREFIX}/rollout"

BEGUN = "rollout begun"
PROMOTED, ROLLED_BACK, STOPPED = "promoted", "rolled back", "stopped"
ENDS = {PROMOTED, ROLLED_BACK, STOPPED}
"""Events of a release's history."""
Phase = Literal[
    "none", "starting", "gate", "warmup", "shadow", "canary", "promote", "promoted", "rolled_back", "stopped"
]
ENDED: tuple[Phase, ...] = ("none", "promoted", "rolled_back", "stopped")


@dataclass(frozen=True)
class RolloutView:
    """Where a rollout stands.

    Attributes:
        share: of the traffic, at the present step; None outside of one.
        reason: of the last decision.
        seen: what became of requests in the present step, by role.
        told: a line for each thing that was decided, oldest first.
    """

    version: str = ""
    champion: str = ""
    phase: Phase = "none"
    share: float | None = None
    reason: str = ""
    seen: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    told: tuple[str, ...] = ()

    @property
    def ended(self) -> bool:
        return self.phase in ENDED


def plain(view: RolloutView) -> dict[str, Any]:
    """As JSON has it."""
    return {**asdict(view), "ended": view.ended}
