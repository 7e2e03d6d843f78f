"""Which replica of a stage a call goes to, and when one is no longer trusted. Pure: the clock is an argument.

A replica is judged by the calls themselves: what answers is trusted. One that is silent for too long,
fails several times in a row or cannot be reached is suspect and is left out as long as another is trusted.
After a pause it is given the copy of a call on trial; an answer brings it back, a failure doubles the pause.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from configs.handle_settings import HandleSettings

WINDOW = 256
"""Latest answers that quantiles are taken of."""
FEWEST = 20
"""Answers before a quantile means anything; until then a hedge waits the longest it may."""
RECOMPUTE_EVERY = 16
"""New answers until the quantiles are worked out again, which takes some 10 µs."""
HEDGE_QUANTILE, HEDGE_FACTOR = 0.95, 2.0
"""A call is late when it takes twice what 19 of 20 take; about one in a hundred is, so hedges stay few."""
SILENCE_QUANTILE, SILENCE_FACTOR = 0.99, 4.0
"""A stage whose honest answers take long must not be called silent after `HandleSettings.hang_ms`."""
LONGEST_PAUSE_S = 2.0
"""Between two trials of a replica that keeps failing them."""


class RetryBudget:
    """A bucket of tokens: each call pays in a share of one, each extra attempt takes one out.

    So the extra attempts of this caller never exceed ``burst + share * calls``, whatever breaks.
    """

    def __init__(self, share: float, burst: int):
        self._share = share
        self._burst = burst
        self._tokens = float(burst)

    def pay_in(self) -> None:
        self._tokens = min(self._burst, self._tokens + self._share)

    def take(self) -> bool:
        """Whether one more attempt may be made; it counts as made."""
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True


class Latencies:
    """Quantiles of the latest answers."""

    def __init__(self) -> None:
        self._latest: deque[float] = deque(maxlen=WINDOW)
        self._sorted: list[float] = []
        self._new = 0

    def observe(self, took_s: float) -> None:
        self._latest.append(took_s)
        self._new += 1
        if self._new >= RECOMPUTE_EVERY or len(self._latest) == FEWEST:
            self._sorted, self._new = sorted(self._latest), 0

    def quantile_s(self, share: float) -> float | None:
        """The answer time that ``share`` of the answers stay within; None while there are too few."""
        if len(self._sorted) < FEWEST:
            return None
        return self._sorted[min(len(self._sorted) - 1, int(share * len(self._sorted)))]


@dataclass
class _Replica:
    """What is known of one replica: its open calls by number and when each was sent, and what it did lately."""

    open: dict[int, float] = field(default_factory=dict)
    last_sent_s: float = float("-inf")
    faults: int = 0
    """Failures, and calls that another replica answered first, since it last answered."""
    suspect: bool = False
    trial: int | None = None
    trial_at_s: float = 0.0
    failed_trials: int = 0


class ReplicaHealth:
    """The replicas of one stage as one caller sees them."""

    def __init__(self, settings: HandleSettings):
        self._settings = settings
        self._latencies = Latencies()
        self._replicas: dict[str, _Replica] = {}
        self._excused_s = float("-inf")
        self._sent = 0

    @property
    def hedge_after_s(self) -> float:
        """How long a call may take before it is also given to another replica."""
        low, high = self._settings.hedge_min_ms / 1000, self._settings.hedge_max_ms / 1000
        usual = self._latencies.quantile_s(HEDGE_QUANTILE)
        return high if usual is None else min(max(HEDGE_FACTOR * usual, low), high)

    @property
    def silence_s(self) -> float:
        """How long a call may be open before its replica counts as silent."""
        usual = self._latencies.quantile_s(SILENCE_QUANTILE)
        return max(self._settings.hang_ms / 1000, SILENCE_FACTOR * usual if usual is not None else 0.0)

    def suspects(self) -> list[str]:
        """Replicas that are not trusted now."""
        return [name for name, replica in self._replicas.items() if replica.suspect]

    def update(self, present: Collection[str]) -> None:
        """Take note of which replicas there are; a new one is trusted, one that left is forgotten."""
        if self._replicas.keys() != set(present):
            self._replicas = {name: self._replicas.get(name) or _Replica() for name in present}

    def choose(self, tried: Collection[str], now_s: float) -> str | None:
        """The replica with the fewest open calls, of equals the one idle longest; None when all were tried.

        Trusted ones come first. When none is left, a suspect is better than nothing: it is the last known.
        """
        self._suspect_the_silent(now_s)
        left = [(name, replica) for name, replica in self._replicas.items() if name not in tried]
        trusted = [each for each in left if not each[1].suspect]
        best = min(trusted or left, key=lambda each: (len(each[1].open), each[1].last_sent_s), default=None)
        return best[0] if best else None

    def has_spare(self, tried: Collection[str], now_s: float) -> bool:
        """Whether another replica is worth asking: a trusted one, or any when none is trusted."""
        self._suspect_the_silent(now_s)
        trusted = [name for name, replica in self._replicas.items() if not replica.suspect]
        return any(name not in tried for name in trusted or self._replicas)

    def due_for_trial(self, now_s: float) -> str | None:
        """A suspect whose pause is over and that no trial is under way with, while others are trusted."""
        suspects = [(name, r) for name, r in self._replicas.items() if r.suspect]
        if len(suspects) == len(self._replicas):
            return None  # those are called anyway
        return next((name for name, r in suspects if r.trial is None and now_s >= r.trial_at_s), None)

    def sent(self, name: str, now_s: float, trial: bool = False) -> int:
        """A call went to a replica; returns the call's number, by which its end is told."""
        self._sent += 1
        if replica := self._replicas.get(name):
            replica.open[self._sent] = now_s
            replica.last_sent_s = now_s
            if trial:
                replica.trial = self._sent
        return self._sent

    def answered(self, name: str, call: int, now_s: float) -> None:
        """The replica did what it was asked, or told the caller what is wrong with the request."""
        if replica := self._replicas.get(name):
            self._latencies.observe(now_s - self._close(replica, call, now_s))
            replica.faults = replica.failed_trials = 0
            replica.suspect = False

    def failed(self, name: str, call: int, now_s: float) -> None:
        """The replica raised what it should not; several in a row make it suspect."""
        if replica := self._replicas.get(name):
            self._close(replica, call, now_s)
            self._blame(replica, now_s)

    def unreachable(self, name: str, call: int, now_s: float) -> None:
        """The connection broke or could not be made: suspect at once, for a dead replica answers nothing more."""
        if replica := self._replicas.get(name):
            self._close(replica, call, now_s)
            self._suspect(replica, now_s)

    def given_up(self, name: str, call: int, now_s: float) -> None:
        """The call was cancelled: another replica was first, its time was over, or its caller left.

        It counts against a replica only after it had the time that a call is expected to take.
        """
        replica = self._replicas.get(name)
        if replica and now_s - self._close(replica, call, now_s) >= self.hedge_after_s:
            self._blame(replica, now_s)

    def excuse(self, now_s: float) -> None:
        """This process itself stood still until now: what waits here unread is no replica's silence."""
        self._excused_s = now_s

    def _close(self, replica: _Replica, call: int, now_s: float) -> float:
        """Forget an open call and return when it was sent; a trial that ends is counted until an answer clears it."""
        sent_s = max(replica.open.pop(call, now_s), self._excused_s)
        if replica.trial == call:
            replica.trial = None
            replica.failed_trials += 1
        return sent_s

    def _blame(self, replica: _Replica, now_s: float) -> None:
        replica.faults += 1
        if replica.suspect or replica.faults >= self._settings.faults:
            self._suspect(replica, now_s)

    def _suspect_the_silent(self, now_s: float) -> None:
        silence_s = self.silence_s
        for replica in self._replicas.values():
            if replica.open and not replica.suspect:
                oldest_s = max(next(iter(replica.open.values())), self._excused_s)
                if now_s - oldest_s > silence_s:
                    self._suspect(replica, now_s)

    def _suspect(self, replica: _Replica, now_s: float) -> None:
        replica.suspect = True
        pause_s = self._settings.trial_ms / 1000 * 2.0 ** min(replica.failed_trials, 16)
        replica.trial_at_s = now_s + min(pause_s, max(LONGEST_PAUSE_S, self._settings.trial_ms / 1000))
