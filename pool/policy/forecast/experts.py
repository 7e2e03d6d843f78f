"""Simple forecasts of one rate, each right in its own conditions; the blend learns which to believe at which lead.

last        as it is now
level_*     exponentially weighted means: for noise
median      of the last steps: for noise with spikes
week        as in the same slot of past weeks, and the same scaled to today's level or shifted to it
day         as in the same slot of past days, scaled or shifted
similar     as it went on after the past days that were most like today up to now: holidays, whose own weekday
            says nothing, are found here among the weekends and holidays before them
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pool.policy.forecast.history import SlotHistory

HALF_LIVES = (2.0, 8.0, 32.0, 128.0)
"""Steps after which an observation counts half, of the levels."""
EXPERTS = (
    "last",
    *(f"level_{half_life:g}" for half_life in HALF_LIVES),
    "median",
    "week",
    "week_scaled",
    "week_level",
    "week_shifted",
    "day_scaled",
    "day_shifted",
    "similar",
)
HISTORIC = np.array([name.startswith(("week", "day", "similar")) for name in EXPERTS])
"""Which of them need more than the last steps."""
WEEKS, DAYS = 4, 3
"""Past weeks and past days that are averaged; a later one counts half more than the one before."""
RECENT_HOURS = 6
"""Over which today's level is compared with the past's."""
SIMILAR_HOURS, SIMILAR_POINTS, SIMILAR_DAYS = 12, 24, 5
"""How long today is compared with past days, at how many points, and how many of them are followed."""
SIMILAR_WEIGHTS = 0.5 ** (3 * np.arange(SIMILAR_POINTS) / SIMILAR_POINTS)
"""Of the points, the latest first."""
MOST_SCALED = 4.0
"""Bound on the ratio of today to the past, either way."""


@dataclass(frozen=True)
class Present:
    """What is known now.

    Attributes:
        position: of the latest step, in slots.
        step_slots: slots of one step, at most 1.
        levels: [H] in the order of `HALF_LIVES`.
        recent: the last steps, latest last, float64 [N].
    """

    position: float
    step_slots: float
    last: float
    levels: np.ndarray
    recent: np.ndarray


def foretell(now: Present, history: SlotHistory, slots_of_day: int, leads: np.ndarray) -> np.ndarray:
    """Forecasts of every expert at every lead, float64 [L, E]; NaN where one knows nothing yet.

    Args:
        leads: steps ahead, [L].
    """
    told = np.full((len(leads), len(EXPERTS)), np.nan)
    told[:, 0] = now.last
    told[:, 1 : 1 + len(HALF_LIVES)] = now.levels
    told[:, 1 + len(HALF_LIVES)] = np.median(now.recent)
    then = now.position + leads * now.step_slots
    first = 2 + len(HALF_LIVES)
    told[:, first : first + 4] = _weekly(now, history, slots_of_day, then)
    told[:, first + 4 : first + 6] = _daily(now, history, slots_of_day, then)
    told[:, first + 6] = _similar(now, history, slots_of_day, then)
    return np.maximum(told, 0.0)


def _weekly(now: Present, history: SlotHistory, slots_of_day: int, then: np.ndarray) -> np.ndarray:
    """[L, 4]: the past weeks' mean plain, scaled by now, scaled by the last hours, and shifted to now."""
    recent = now.position - np.arange(max(1, RECENT_HOURS * slots_of_day // 24))
    usual = averaged(history, np.concatenate([then, recent]), 7 * slots_of_day, WEEKS)
    ahead, behind = usual[: len(then)], usual[len(then) :]
    scaled = ahead * _ratio(now.last, behind[0])
    level = ahead * _level_ratio(history.at(recent), behind)
    return np.stack([ahead, scaled, level, now.last + ahead - behind[0]], axis=1)


def _daily(now: Present, history: SlotHistory, slots_of_day: int, then: np.ndarray) -> np.ndarray:
    """[L, 2]: the past days' mean scaled by now, and shifted to now."""
    usual = averaged(history, np.append(then, now.position), slots_of_day, DAYS)
    ahead, here = usual[:-1], usual[-1]
    return np.stack([ahead * _ratio(now.last, here), now.last + ahead - here], axis=1)


def averaged(history: SlotHistory, positions: np.ndarray, period: int, periods: int) -> np.ndarray:
    """Mean over past periods at the same place of each, [P]; what is not known is left out."""
    back = np.arange(1, periods + 1)[:, None] * period
    rates = history.at(positions[None, :] - back)
    return _weighed(rates, 1.5 ** -np.arange(periods)[:, None])


def _similar(now: Present, history: SlotHistory, slots_of_day: int, then: np.ndarray) -> np.ndarray:
    """[L]: how the past days most like today went on, each scaled to today; NaN while no past day is known."""
    days = np.arange(1, history.days(slots_of_day) + 1)
    stride = max(1, SIMILAR_HOURS * slots_of_day // 24 // SIMILAR_POINTS)
    back = np.arange(SIMILAR_POINTS) * stride
    today = history.at(now.position - back)
    before = history.at(now.position - back[None, :] - days[:, None] * slots_of_day)
    weights = np.where(np.isnan(today), 0.0, SIMILAR_WEIGHTS)
    size = weights @ np.where(np.isnan(today), 0.0, today)
    known = np.flatnonzero(~np.isnan(before[:, weights > 0]).any(axis=1))
    if size <= 0 or not len(known):
        return np.full(len(then), np.nan)
    before = np.where(weights > 0, before[known], 0.0)
    apart = np.abs(before - np.where(weights > 0, today, 0.0)) @ weights / size
    nearest = apart.argsort(kind="stable")[:SIMILAR_DAYS]
    usual = before[nearest] @ weights
    ratios = np.clip(size / np.where(usual > 0, usual, size), 1 / MOST_SCALED, MOST_SCALED)
    ahead = history.at(then[None, :] - days[known[nearest], None] * slots_of_day) * ratios[:, None]
    return _weighed(ahead, 1 / (apart[nearest, None] + 0.01) ** 2)


def _weighed(rates: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Mean by column, [P], of what is known; NaN where nothing is.

    Args:
        rates: [N, P], weights: [N, 1] above 0.
    """
    unknown = np.isnan(rates)
    counted = np.where(unknown, 0.0, weights)
    total = counted.sum(axis=0)
    sums = (np.where(unknown, 0.0, rates) * counted).sum(axis=0)
    return np.where(total > 0, sums / np.where(total > 0, total, 1.0), np.nan)


def _level_ratio(today: np.ndarray, usual: np.ndarray) -> float:
    both = np.isfinite(today) & np.isfinite(usual)
    return _ratio(float(today[both].sum()), float(usual[both].sum())) if both.any() else np.nan


def _ratio(today: float, usual: float) -> float:
    """Today over the usual, bounded; 1 where the usual is nothing."""
    if not usual > 0:
        return np.nan if np.isnan(usual) else 1.0
    return min(MOST_SCALED, max(1 / MOST_SCALED, today / usual))
