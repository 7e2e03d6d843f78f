"""Where requests to a release wait and are worked for: who may join, the queue, and the threads behind it.

A release that only some of the traffic goes to has a desk of its own, so that what is slow there delays nobody else.
"""

from __future__ import annotations

from collections.abc import Callable

from configs.settings import Settings
from serving.admission import Admission
from serving.coalescing import Coalescer
from serving.lanes import Gate, Lanes, RunBatch
from serving.quality import QualityController

CLOSE_AFTER_S = 5.0
"""More than the longest deadline: whoever was at the desk has an answer by then."""


class Desk:
    """One desk.

    Args:
        lanes: batches in flight at once.
        all_here: every stage runs in this process, so a batch can stay on one thread.
    """

    def __init__(self, settings: Settings, lanes: int, all_here: bool):
        self.quality = QualityController(settings.overload)
        self.admission = Admission(settings.overload, settings.serving.max_batch_rows, lanes, self.quality)
        self.queue = Coalescer(self.admission, lanes)
        self._lanes = Lanes(lanes, settings.ranking.threads or 1)
        # A stage elsewhere is awaited on the loop that its handle belongs to.
        self.place: Callable[[RunBatch], RunBatch] = self._lanes.on_lane if all_here else _in_loop

    def pass_gate(self, gate: Gate | None) -> None:
        """Compute behind a device's gate from here on; without one freely."""
        self._lanes.pass_gate(gate)

    def close(self) -> None:
        self._lanes.close()


def _in_loop(run: RunBatch) -> RunBatch:
    return run
