"""What the replicas tell of the divided traffic, put together."""

from __future__ import annotations

import time
from collections.abc import Callable

from serving.experiments.roles import DivisionReport
from serving.experiments.rollout import Seen
from serving.experiments.spec import Traffic
from serving.experiments.tally import total


class Reports:
    """The newest report of each replica; one that died keeps its last, as what it has seen is true all the same."""

    def __init__(self, clock: Callable[[], float] = time.monotonic):
        self._clock = clock
        self._reports: dict[str, DivisionReport] = {}
        self.last_s: float | None = None

    def take(self, report: DivisionReport) -> None:
        self._reports[report.replica] = report
        self.last_s = self._clock()

    def seen(self, traffic: Traffic) -> Seen:
        """What replicas with this division have seen; others have not taken it up yet, or no more."""
        plain = traffic.model_dump(mode="json")
        reports = [each for each in self._reports.values() if each.traffic == plain]
        roles = {role for each in reports for role in each.tallies}
        return Seen(
            replicas=len(reports),
            tallies={role: total([each.tallies[role] for each in reports if role in each.tallies]) for role in roles},
            stopped=next((each.stopped for each in reports if each.stopped), ""),
            missing=next((why for each in reports for why in each.missing.values()), ""),
        )

    def clear(self) -> None:
        self._reports.clear()
        self.last_s = None
