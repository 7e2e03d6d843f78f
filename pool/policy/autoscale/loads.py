"""From what replicas count to what an autoscaler sees: counters of replicas that come, go and start again."""

from __future__ import annotations

from dataclasses import dataclass, replace

from pool.policy.autoscale.signals import Signals


@dataclass(frozen=True)
class Load:
    """Counters of one replica, since it started but for ``queued``.

    Attributes:
        deployment, app: which it is a replica of; replica: names it as long as it lives.
        arrived: requests that came, refused ones included.
        queued: requests that wait in it now.
        late: requests answered later than the objective, or refused.
        busy_s: time that it computed; cores: on so many at a time at most.
    """

    app: str
    deployment: str
    replica: str
    arrived: float
    queued: float
    late: float
    busy_s: float
    cores: int = 1


NOTHING = Load("", "", "", arrived=0.0, queued=0.0, late=0.0, busy_s=0.0)


@dataclass(frozen=True)
class Outside:
    """What is counted in front of the replicas: calls that came to the ingress, and those that wait there now."""

    arrived: float
    queued: float


@dataclass
class _Seen:
    load: Load
    at_s: float


class LoadBook:
    """What the replicas of one deployment said.

    A replica counts from the first time that it is heard of, except that all of a replica that is new is news. One
    whose counters fall has started again. One that says nothing for ``ttl_s`` is gone.
    """

    def __init__(self, ttl_s: float):
        self._ttl_s = ttl_s
        self._seen: dict[str, _Seen] = {}
        self._new = NOTHING
        self._capacity_s = 0.0
        self._outside: Outside | None = None
        self._at_s: float | None = None

    @property
    def app(self) -> str | None:
        """Of the replica that was heard of last; None before any was."""
        newest = max(self._seen.values(), key=lambda seen: seen.at_s, default=None)
        return newest.load.app if newest else None

    def take(self, load: Load, now_s: float) -> None:
        """Counters of a replica, by a monotonic clock."""
        before = self._seen.get(load.replica)
        self._seen[load.replica] = _Seen(load, now_s)
        if before is None:
            return  # what it counted before may have been told to an autoscaler before this one
        old, new = before.load, self._new
        if load.arrived < old.arrived or load.busy_s < old.busy_s:
            old = replace(old, arrived=0.0, late=0.0, busy_s=0.0)
        self._new = replace(
            new,
            arrived=new.arrived + load.arrived - old.arrived,
            late=new.late + max(0.0, load.late - old.late),
            busy_s=new.busy_s + load.busy_s - old.busy_s,
        )
        self._capacity_s += (now_s - before.at_s) * load.cores

    def signals(
        self, at_s: float, now_s: float, running: int, starting: int, outside: Outside | None = None
    ) -> Signals | None:
        """Everything since the last call; None at the first, when it is not known since when.

        Args:
            at_s: seconds since 1970; now_s: monotonic.
            outside: of the ingress, where it can be asked: calls that it refuses no replica has seen.
        """
        self._seen = {name: seen for name, seen in self._seen.items() if now_s - seen.at_s <= self._ttl_s}
        new, self._new = self._new, NOTHING
        capacity_s, self._capacity_s = self._capacity_s, 0.0
        since_s, self._at_s = self._at_s, now_s
        arrived, queued = new.arrived, sum(seen.load.queued for seen in self._seen.values())
        if outside is not None:
            before, queued = self._outside, queued + outside.queued
            if before is not None and outside.arrived >= before.arrived:
                arrived = max(arrived, outside.arrived - before.arrived)
        self._outside = outside
        if since_s is None or now_s <= since_s:
            return None
        busy = min(1.0, new.busy_s / capacity_s) if capacity_s > 0 else 0.0
        return Signals(at_s, now_s - since_s, arrived, queued, busy, running, starting, new.late)
