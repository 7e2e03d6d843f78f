"""What became of the requests to one release: counts, and latencies in buckets; can be added up over replicas."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any

GROWTH = 1.1
"""From one bucket of latencies to the next: a quantile is known to a tenth."""
BOUNDS_MS = tuple(0.5 * GROWTH**power for power in range(90))
"""Upper ends of the buckets, up to 2.4 s; one bucket more has what is above."""


@dataclass
class Tally:
    """Counts since the division began.

    Attributes:
        requests: answers that were due; the others are part of them.
        errors: raised to the caller, or would have been.
        empty: without a single item although nothing in the request asked for that.
        broken: answers that did without a stage because it failed or came late.
        shed: refused, or answered by popular items alone, as the release was not fast enough for what came.
        buckets: answers by latency, ``len(BOUNDS_MS) + 1``.
        overlap: of a shadow's answers, the sum of the shares of items that the champion gave as well.
        dropped: requests that a shadow was not asked, as it was busy.
    """

    requests: int = 0
    errors: int = 0
    empty: int = 0
    broken: int = 0
    shed: int = 0
    buckets: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS_MS) + 1))
    overlap: float = 0.0
    dropped: int = 0

    def answer(self, took_ms: float, empty: bool, broken: bool, shed: bool = False) -> None:
        self.requests += 1
        self.empty += empty
        self.broken += broken
        self.shed += shed
        self.buckets[bisect.bisect_left(BOUNDS_MS, took_ms)] += 1

    def error(self) -> None:
        self.requests += 1
        self.errors += 1

    def refuse(self) -> None:
        self.requests += 1
        self.shed += 1

    def late(self, slo_ms: float) -> int:
        """Answers above a latency, as far as buckets tell: those that may be below it do not count."""
        return sum(self.buckets[bisect.bisect_left(BOUNDS_MS, slo_ms) + 1 :])

    def quantile_ms(self, share: float) -> float | None:
        """The upper end of the bucket that a share of the answers is within; None without answers."""
        total = sum(self.buckets)
        if not total:
            return None
        seen = 0
        for bound, count in zip((*BOUNDS_MS, float("inf")), self.buckets, strict=True):
            seen += count
            if seen >= share * total:
                return bound
        return float("inf")

    def summary(self) -> dict[str, Any]:
        """For people and logs; latencies in ms, None without answers or beyond what buckets tell."""
        compared = self.requests - self.errors
        return {
            **{name: getattr(self, name) for name in ("requests", "errors", "empty", "broken", "shed", "dropped")},
            **{f"p{q}_ms": _finite(self.quantile_ms(q / 100)) for q in (50, 95, 99)},
            "overlap": round(self.overlap / compared, 4) if compared and self.overlap else None,
        }


def total(tallies: Sequence[Tally]) -> Tally:
    """All of them in one."""
    out = Tally()
    for tally in tallies:
        for each in fields(Tally):
            if each.name != "buckets":
                setattr(out, each.name, getattr(out, each.name) + getattr(tally, each.name))
        out.buckets = [a + b for a, b in zip(out.buckets, tally.buckets, strict=True)]
    return out


def _finite(value: float | None) -> float | None:
    return None if value is None or value == float("inf") else round(value, 2)
