"""Whether a request can still be answered in full and in time, told before any work is done for it.

The account of what waits and what runs, by priority; what a batch costs, learnt from those that ran;
and from both, when a new request would be answered. The clock is an argument everywhere.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from configs.errors import Overloaded
from configs.overload_settings import OverloadSettings
from serving.batch_times import BatchTimes
from serving.preparation import Row
from serving.priority import Priority
from serving.quality import QualityController

HORIZON_S = 0.5
"""Over how long the share of time that went to each priority is averaged."""
LEAST_SHARE = 0.02
"""Share of time a priority is expected to get at least, however busy those above it are."""
PROMPT_MS = 10.0
"""Within which a caller is refused, if at all."""


class BatchCosts:
    """Expected time of a batch by its rows: a part for the batch and a part for each row.

    Both are the least-squares line through the batches seen, recent ones weighing more.

    Args:
        keep: weight that each new batch leaves to those before it; 0.97 remembers about 30.
    """

    def __init__(self, keep: float = 0.97):
        self._keep = keep
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)
        self._line = (0.0, 0.0)

    def observe(self, rows: int, took_ms: float) -> None:
        """A batch of ``rows`` took ``took_ms``."""
        news = (1.0, rows, rows * rows, took_ms, rows * took_ms)
        self._sums = tuple(old * self._keep + new for old, new in zip(self._sums, news, strict=True))
        self._line = _line(*self._sums)

    def expected_ms(self, rows: int) -> float:
        """0 until a batch was seen, and for no rows."""
        return self._line[0] + self._line[1] * rows if rows else 0.0

    def rows_within(self, limit_ms: float) -> int:
        """Most rows whose batch is expected to take no longer than ``limit_ms``; at least 1."""
        fixed, per_row = self._line
        return max(1, int((limit_ms - fixed) / per_row)) if per_row > 0 else _ANY


_ANY = 2**31


def _line(weight: float, n: float, nn: float, t: float, nt: float) -> tuple[float, float]:
    """Intercept and slope through weighted points (n, t), neither negative."""
    spread = weight * nn - n * n
    slope = (weight * nt - n * t) / spread if spread > 1e-6 * weight * nn else 0.0
    fixed = (t - slope * n) / weight
    if slope <= 0 or fixed < 0:  # sizes too alike to tell, or noise: all of it by the row
        return 0.0, nt / nn
    return fixed, slope


@dataclass(eq=False)
class _Batch:
    """A batch that runs: rows by priority, and when it began."""

    kind: str
    rows: dict[Priority, int]
    count: int
    began_s: float


class Admission:
    """Keeps the account for one coalescer (`serving.coalescing.Book`) and decides who may join its queue.

    Args:
        max_rows: rows in a batch at most, whatever it takes.
        lanes: batches in flight at once.
        quality: is told how long rows wait.
    """

    def __init__(self, settings: OverloadSettings, max_rows: int, lanes: int, quality: QualityController):
        self._settings = settings
        self._max_rows = max_rows
        self._lanes = lanes
        self._quality = quality
        self._costs: dict[str, BatchCosts] = {}
        self._times: dict[str, BatchTimes] = {}
        self._waiting: dict[Priority, dict[str, int]] = {priority: {} for priority in Priority}
        self._running: list[_Batch] = []
        self._busy = {priority: _Decaying() for priority in Priority}
        self._urgent_s = -math.inf
        self.refused = Counter[Priority]()

    def queued(self, kind: str, priority: Priority, now_s: float) -> None:
        """A row joins the queue."""
        waiting = self._waiting[priority]
        waiting[kind] = waiting.get(kind, 0) + 1
        if priority is Priority.HIGH:
            self._urgent_s = now_s

    def dequeued(self, kind: str, priority: Priority) -> None:
        """A row leaves the queue: for a batch, or because nobody waits for it."""
        self._waiting[priority][kind] -= 1

    def most_rows(self, kind: str, now_s: float) -> int:
        """Rows the next batch may hold. A batch cannot be interrupted, so while urgent requests come in, none
        is so large that one of them would wait long for it."""
        if now_s - self._urgent_s > self._settings.urgent_memory_s:
            return self._max_rows
        return min(self._max_rows, self._cost(kind).rows_within(self._settings.urgent_batch_ms))

    def started(self, kind: str, rows: Sequence[Row], waited_ms: float, now_s: float) -> _Batch:
        """A batch begins, when the row that waited longest had waited so long."""
        by_priority: dict[Priority, int] = {}
        for row in rows:
            by_priority[row.priority] = by_priority.get(row.priority, 0) + 1
        batch = _Batch(kind, by_priority, len(rows), now_s)
        self._running.append(batch)
        self._quality.observe(waited_ms, now_s)
        return batch

    def done(self, batch: _Batch, now_s: float, is_whole: bool) -> None:
        """A batch ends; what it took is learnt, unless it was given up on the way."""
        self._running.remove(batch)
        took_s = max(0.0, now_s - batch.began_s)
        if is_whole:
            self._cost(batch.kind).observe(batch.count, took_s * 1000)
            self.times(batch.kind).observe(batch.count, took_s * 1000)
        for priority, count in batch.rows.items():
            self._busy[priority].add(took_s * count / batch.count, now_s)

    def admit(self, kind: str, priority: Priority, deadline_s: float, arrived_s: float, now_s: float) -> bool:
        """Whether a request may join the queue; one that would be late there is answered with popular items.

        A service at which nothing waits or runs has time for everybody.

        Args:
            arrived_s: when the caller began to wait, by the same clock.
        Raises:
            Overloaded: it would be late, is of low priority, and has come just now: a refusal helps at once or not
            at all, and costs no less than popular items.
        """
        predicted_ms = self.predicted_ms(kind, priority, now_s)
        allowed_ms = min((deadline_s - now_s) * 1000, self._settings.max_wait_ms)
        if predicted_ms <= allowed_ms or not self._is_busy():
            return True
        if priority is not Priority.LOW:
            self._quality.observe(predicted_ms, now_s)  # sooner than by the waits of those who are in the queue
            return False
        if (now_s - arrived_s) * 1000 > PROMPT_MS:
            return False
        self.refused[priority] += 1
        raise Overloaded(
            f"too busy: an answer would take {predicted_ms:.0f} ms and {max(0.0, allowed_ms):.0f} ms are allowed; come "
            "back after Retry-After seconds, send a larger timeout_ms, or a higher priority",
            retry_after_s=(predicted_ms - allowed_ms) / 1000,
        )

    def predicted_ms(self, kind: str, priority: Priority, now_s: float) -> float:
        """When a new row would be answered: what runs, what waits in its class and above, and itself."""
        ahead = {kind: 1}
        for each in priority.and_above:
            for waiting, rows in self._waiting[each].items():
                ahead[waiting] = ahead.get(waiting, 0) + rows
        ahead_ms = 0.0
        for each, rows in ahead.items():
            ahead_ms += self._work_ms(each, rows)
        for batch in self._running:
            ahead_ms += self._remaining_ms(batch, now_s)
        return ahead_ms / self._lanes / self._share_left(priority, now_s)

    @property
    def waiting(self) -> int:
        """Rows in the queue."""
        return sum(map(_total, self._waiting.values()))

    def times(self, kind: str) -> BatchTimes:
        """What batches of one kind took lately."""
        times = self._times.get(kind)
        if times is None:
            times = self._times[kind] = BatchTimes()
        return times

    def _work_ms(self, kind: str, rows: int) -> float:
        """Time of that many rows in batches as large as they may be."""
        if not rows:
            return 0.0
        size = min(rows, self._max_rows)
        return self._cost(kind).expected_ms(size) * rows / size

    def _remaining_ms(self, batch: _Batch, now_s: float) -> float:
        expected_ms = self._cost(batch.kind).expected_ms(batch.count)
        return max(0.0, expected_ms - (now_s - batch.began_s) * 1000)

    def _share_left(self, priority: Priority, now_s: float) -> float:
        """Share of the lanes' time that those above leave, as of late: whoever of them arrives later goes first too."""
        above_s = 0.0
        for each in priority.and_above:
            if each is not priority:
                above_s += self._busy[each].per_s(now_s)
        return max(LEAST_SHARE, 1 - above_s / self._lanes)

    def _is_busy(self) -> bool:
        return bool(self._running) or self.waiting > 0

    def _cost(self, kind: str) -> BatchCosts:
        costs = self._costs.get(kind)
        if costs is None:
            costs = self._costs[kind] = BatchCosts()
        return costs


def _total(counts: dict[str, int]) -> int:
    return sum(counts.values())


class _Decaying:
    """A sum that forgets, as a rate."""

    def __init__(self) -> None:
        self._sum, self._at_s = 0.0, 0.0

    def add(self, amount: float, now_s: float) -> None:
        self._sum = self._sum * math.exp((self._at_s - now_s) / HORIZON_S) + amount
        self._at_s = now_s

    def per_s(self, now_s: float) -> float:
        if not self._sum:
            return 0.0
        return self._sum * math.exp((self._at_s - now_s) / HORIZON_S) / HORIZON_S
