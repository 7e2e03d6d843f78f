"""What an experiment shows: for each arm its metrics with confidence intervals, and how it differs from the first arm.

Callers are divided, so callers are what is counted: those who come often must not count as many. A metric is a ratio of
sums over users (clicks over slates, say), and its interval follows from how users differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from features.event_log import EventLog
from features.event_log_records import LoggedEvent
from serving.experiments.roles import CHALLENGER, CHAMPION

ROLLOUT = "rollout"
"""Stands for the division between champion and challenger; an experiment cannot have the name of its own."""
PAGE = 5_000
Z95 = 1.959964
LEAST_USERS = 2
EVENTS = ("click", "like", "rating")


@dataclass(frozen=True)
class Metric:
    """A ratio over the users of an arm, its 95% interval, and how it differs from the first arm's.

    Attributes:
        difference, low, high: of the arm's less the first arm's, with its 95% interval; None for the first arm, or
            where too few users have been seen.
    """

    value: float | None
    low: float | None
    high: float | None
    difference: float | None = None
    difference_low: float | None = None
    difference_high: float | None = None

    @property
    def is_sure(self) -> bool:
        """Whether the difference is none of chance, at 5%."""
        if self.difference_low is None or self.difference_high is None:
            return False
        return self.difference_low > 0 or self.difference_high < 0


@dataclass(frozen=True)
class ArmReport:
    users: int
    slates: int
    metrics: Mapping[str, Metric]


@dataclass
class _User:
    """Sums of one user in one arm."""

    slates: int = 0
    empty: int = 0
    degraded: int = 0
    took_ms: float = 0.0
    clicked: set[str] = field(default_factory=set)
    click: int = 0
    like: int = 0
    rating: int = 0
    rated: float = 0.0


RATIOS: Mapping[str, tuple[str, str]] = {
    "clicks_per_slate": ("click", "slates"),
    "slates_clicked": ("clicked", "slates"),
    "likes_per_slate": ("like", "slates"),
    "mean_rating": ("rated", "rating"),
    "empty": ("empty", "slates"),
    "degraded": ("degraded", "slates"),
    "took_ms": ("took_ms", "slates"),
}
"""Metrics: the sum above, and the sum below."""


def report(events: Iterable[LoggedEvent], experiment: str, against: str = CHAMPION) -> dict[str, ArmReport]:
    """Reports by arm, in the order of their names.

    Args:
        events: in the order of writing: what happened to a slate comes after it was shown.
        experiment: its name, or `ROLLOUT`.
        against: the arm that comes first, and that the others are compared with, if there is one of that name.
    """
    arms: dict[str, dict[str, _User]] = {}
    slates: dict[str, _User] = {}
    for event in events:
        if event.kind == "impression" and "items" in (event.payload or {}):
            arm = _arm(event.payload.get("part") or {}, experiment)
            if arm is not None and event.user_id is not None:
                user = arms.setdefault(arm, {}).setdefault(event.user_id, _User())
                slates[event.event_id] = user
                _show(user, event.payload)
        elif event.kind in EVENTS:
            shown = str((event.payload or {}).get("recommendation_id"))
            if shown in slates:
                _happen(slates[shown], shown, event)
    names = sorted(arms, key=lambda arm: (arm != against, arm))
    sums = {arm: _Sums(list(arms[arm].values())) for arm in names}
    first = next(iter(sums.values()), None)
    return {
        arm: ArmReport(
            len(arms[arm]), int(each.of("slates").sum()),
            {name: _metric(each, None if each is first else first, *ratio) for name, ratio in RATIOS.items()},
        )
        for arm, each in sums.items()
    }  # fmt: skip


def all_events(log: EventLog) -> Iterator[LoggedEvent]:
    """Everything that was kept, page by page. Raises Unavailable when the log cannot be read."""
    after = 0
    while page := log.read(after, PAGE):
        yield from page
        after = page[-1].position


def _arm(part: Mapping[str, Any], experiment: str) -> str | None:
    if experiment == ROLLOUT:
        # Whom the champion answered instead of a challenger was the challenger's, and fared as it let him.
        return CHALLENGER if part.get("instead") else part.get("role")
    return part.get("arm") if part.get("experiment") == experiment else None


def _show(user: _User, payload: Mapping[str, Any]) -> None:
    user.slates += 1
    user.empty += not payload["items"]
    user.degraded += bool(payload.get("degraded"))
    user.took_ms += float(payload.get("took_ms") or 0.0)


def _happen(user: _User, slate: str, event: LoggedEvent) -> None:
    if event.kind == "click":
        user.click += 1
        user.clicked.add(slate)
    elif event.kind == "like":
        user.like += 1
    else:
        user.rating += 1
        user.rated += float(event.payload.get("value") or 0.0)


class _Sums:
    """The users of an arm as columns [U] float64."""

    def __init__(self, users: list[_User]):
        self._users = users

    def of(self, name: str) -> np.ndarray:
        values = (getattr(user, name) for user in self._users)
        return np.array([len(each) if isinstance(each, set) else each for each in values], np.float64)


def _metric(arm: _Sums, first: _Sums | None, above: str, below: str) -> Metric:
    value, error = ratio(arm.of(above), arm.of(below))
    if value is None or error is None:
        return Metric(value, None, None)
    low, high = value - Z95 * error, value + Z95 * error
    usual, usual_error = ratio(first.of(above), first.of(below)) if first else (None, None)
    if usual is None or usual_error is None:
        return Metric(value, low, high)
    difference, spread = value - usual, Z95 * math.hypot(error, usual_error)
    return Metric(value, low, high, difference, difference - spread, difference + spread)


def ratio(above: np.ndarray, below: np.ndarray) -> tuple[float | None, float | None]:
    """The ratio of two sums over users [U], and its standard error; None where there is nothing to divide by.

    Source: the delta method for ratios of means, as in Deng, Knoblich and Lu 2018.
    """
    total, users = below.sum(), len(below)
    if not total:
        return None, None
    value = float(above.sum() / total)
    if users < LEAST_USERS:
        return value, None
    residual = above - value * below
    return value, float(math.sqrt((residual**2).sum() / (users - 1) * users) / total)
