"""What came of a load: outcomes by column, their summary, and the search for the best sustained rate."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from benchmarks.load.connection import Reply

ANSWERED = 200


@dataclass
class Outcomes:
    """One entry a request, in the order of their scheduled times; arrays of shape [N].

    Args:
        scheduled_s: float64, after the start. `started_s` is time.monotonic() at the start.
        latency_s: float64, from the scheduled time to the end of the answer or to giving up.
        status: int16; 0: no answer.
        retried: bool. found: bool, see `Load.contains`. lag_s: how late the generator itself sent.
        bodies: of answers, when asked for. bound_hit: requests waited for a connection.
        cpu_s: processor time the generator took.
    """

    started_s: float
    scheduled_s: np.ndarray
    latency_s: np.ndarray
    status: np.ndarray
    retried: np.ndarray
    found: np.ndarray
    lag_s: np.ndarray
    bodies: list[bytes | None] | None = None
    bound_hit: bool = False
    cpu_s: float = 0.0

    @classmethod
    def empty(cls, times_s: np.ndarray, started_s: float, keep_bodies: bool) -> Outcomes:
        count = len(times_s)
        bodies: list[bytes | None] = [None] * count
        return cls(
            started_s=started_s,
            scheduled_s=np.asarray(times_s, dtype=np.float64),
            latency_s=np.full(count, np.nan),
            status=np.zeros(count, dtype=np.int16),
            retried=np.zeros(count, dtype=bool),
            found=np.zeros(count, dtype=bool),
            lag_s=np.zeros(count),
            bodies=bodies if keep_bodies else None,
        )

    def record(self, index: int, latency_s: float, reply: Reply | None, retried: bool, contains: bytes | None) -> None:
        self.latency_s[index] = latency_s
        self.retried[index] = retried
        if reply is None:
            return
        self.status[index] = reply.status
        if contains is not None and reply.status == ANSWERED:
            self.found[index] = contains in reply.body
        if self.bodies is not None:
            self.bodies[index] = reply.body

    def select(self, chosen: np.ndarray | slice) -> Outcomes:
        """Those of a boolean mask, an index array or a slice, one class of priority for instance."""
        bodies = None if self.bodies is None else [self.bodies[i] for i in np.arange(len(self.status))[chosen]]
        columns = ("scheduled_s", "latency_s", "status", "retried", "found", "lag_s")
        taken = {name: getattr(self, name)[chosen] for name in columns}
        return Outcomes(self.started_s, **taken, bodies=bodies, bound_hit=self.bound_hit, cpu_s=self.cpu_s)

    def summary(self) -> Summary:
        """Latency quantiles of the requests answered with 200; NaN when none was."""
        count = len(self.status)
        good = self.latency_s[self.status == ANSWERED] * 1e3
        p50, p99, worst = np.quantile(good, (0.5, 0.99, 1.0)).tolist() if len(good) else (np.nan,) * 3
        span_s = float(self.scheduled_s[-1] - self.scheduled_s[0]) if count > 1 else 0.0
        codes, counts = np.unique(self.status, return_counts=True)
        return Summary(
            count=count,
            offered_per_s=(count - 1) / span_s if span_s else 0.0,
            answered=len(good) / count if count else 0.0,
            p50_ms=p50,
            p99_ms=p99,
            max_ms=worst,
            statuses=dict(zip(codes.tolist(), counts.tolist(), strict=True)),
            retried=int(self.retried.sum()),
            found=int(self.found.sum()),
            lag_p99_ms=float(np.quantile(self.lag_s, 0.99)) * 1e3 if count else 0.0,
            bound_hit=self.bound_hit,
            cpu_us_per_request=self.cpu_s / count * 1e6 if count else 0.0,
        )


@dataclass(frozen=True)
class Summary:
    """A load in a few numbers. `answered`: share with status 200, which the quantiles are of."""

    count: int
    offered_per_s: float
    answered: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    statuses: dict[int, int]
    retried: int = 0
    found: int = 0
    lag_p99_ms: float = 0.0
    bound_hit: bool = False
    cpu_us_per_request: float = 0.0

    def row(self) -> list[float | int | str]:
        """Cells for a table, under `COLUMNS`."""
        others = " ".join(f"{code}:{count}" for code, count in self.statuses.items() if code != ANSWERED)
        return [self.offered_per_s, self.answered, self.p50_ms, self.p99_ms, self.max_ms, others or "-"]


COLUMNS = ("offered/s", "answered", "p50 ms", "p99 ms", "max ms", "others")


@dataclass(frozen=True)
class Step:
    """One measurement of the search."""

    rate: float
    passed: bool
    summary: Summary


@dataclass(frozen=True)
class BestRate:
    """Best sustained requests/s, with medians of the repeats at that rate, and every step that led there.

    `rate` is 0 when even the lowest rate tried failed.
    """

    rate: float
    p50_ms: float
    p99_ms: float
    steps: list[Step] = field(repr=False)


def best_rate(
    measure: Callable[[float], Summary],
    *,
    begin: float = 50.0,
    highest: float = 20_000.0,
    p99_ms: float = 50.0,
    answered: float = 0.999,
    resolution: float = 0.05,
    attempts: int = 2,
    repeats: int = 3,
) -> BestRate:
    """The highest offered rate that is served with a p99 within `p99_ms` and at least `answered` of it answered.

    Doubles (or halves) from `begin` until the border lies between two rates, then bisects them geometrically
    until they are within `resolution`. A rate fails when it failed `attempts` times, so that one hiccup of the
    machine does not decide. The final rate is measured `repeats` times and must pass in its medians;
    otherwise the search goes down by `resolution`.

    Args:
        measure: runs some seconds of load at a rate and sums them up.
    """
    steps: list[Step] = []

    def is_good(found: Summary) -> bool:
        return found.answered >= answered and found.p99_ms <= p99_ms

    def passes(rate: float) -> bool:
        for _ in range(attempts):
            found = measure(rate)
            steps.append(Step(rate, is_good(found), found))
            if steps[-1].passed:
                return True
        return False

    low, high = _bracket(passes, begin, highest)
    while low and high / low > 1 + resolution:
        middle = (low * high) ** 0.5
        low, high = (middle, high) if passes(middle) else (low, middle)
    while low >= 1:
        finals = [measure(low) for _ in range(repeats)]
        steps += [Step(low, is_good(found), found) for found in finals]
        if sum(is_good(found) for found in finals) * 2 > repeats:
            p50s, p99s = ([getattr(each, name) for each in finals] for name in ("p50_ms", "p99_ms"))
            return BestRate(low, statistics.median(p50s), statistics.median(p99s), steps)
        low /= 1 + resolution
    return BestRate(0.0, float("nan"), float("nan"), steps)


def _bracket(passes: Callable[[float], bool], begin: float, highest: float) -> tuple[float, float]:
    """Two rates a factor of two apart, of which the lower passes and the higher does not; (0, 0): none passes."""
    rate = begin
    if passes(rate):
        while rate * 2 <= highest and passes(rate * 2):
            rate *= 2
        return rate, rate * 2 if rate * 2 <= highest else rate
    while rate >= 2:
        rate /= 2
        if passes(rate):
            return rate, rate * 2
    return 0.0, 0.0
