"""Parts that a release has in the traffic, and what a replica tells of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from serving.experiments.tally import Tally

CHAMPION, CHALLENGER, SHADOW = "champion", "challenger", "shadow"


@dataclass(frozen=True)
class DivisionReport:
    """What a replica has seen since the traffic was divided so.

    Attributes:
        replica: whose report it is.
        traffic: the division, as plain values.
        tallies: by role.
        stopped: why the challenger and the shadow get nothing more here; empty while they do.
        missing: releases that could not be loaded, each with the reason.
    """

    replica: str
    traffic: Mapping[str, Any]
    tallies: Mapping[str, Tally]
    stopped: str = ""
    missing: Mapping[str, str] = field(default_factory=dict)
