"""Per-arm metrics and their intervals, against a bootstrap over users and against known truths."""

from __future__ import annotations

import numpy as np
import pytest

from features.event_log import SqliteEventLog
from features.event_log_records import LoggedEvent
from serving.experiments.report import ROLLOUT, all_events, ratio, report


def impression(position: int, user: str | None, part: dict, items: int = 3, **payload) -> LoggedEvent:
    told = {"items": [f"i{n}" for n in range(items)], "part": part, "degraded": [], "took_ms": 5.0, **payload}
    return LoggedEvent(position, f"rec{position}", "impression", 0.0, user, told)


def event(position: int, kind: str, slate: int, value: float | None = None) -> LoggedEvent:
    return LoggedEvent(position, f"e{position}", kind, 0.0, "u", {"recommendation_id": f"rec{slate}", "value": value})


def test_the_error_of_a_ratio_is_that_of_a_bootstrap_over_users():
    random = np.random.default_rng(5)
    slates = random.integers(1, 30, 400)
    clicks = random.binomial(slates, random.beta(2, 8, 400))
    value, error = ratio(clicks.astype(float), slates.astype(float))
    draws = random.integers(0, 400, (2_000, 400))
    bootstrap = np.std(clicks[draws].sum(1) / slates[draws].sum(1))
    assert value == pytest.approx(clicks.sum() / slates.sum())
    assert error == pytest.approx(bootstrap, rel=0.1)


def test_arms_are_counted_by_user_and_what_follows_belongs_to_its_slate():
    a, b = {"experiment": "e", "arm": "a"}, {"experiment": "e", "arm": "b"}
    events = [
        impression(1, "u1", a), impression(2, "u1", a), impression(3, "u2", a, items=0),
        impression(4, "u3", b), impression(5, "u4", b, degraded=[{"stage": "fine", "reason": "failed"}]),
        impression(6, "u5", {"experiment": "other", "arm": "a"}), impression(7, None, a), impression(8, "u6", {}),
        event(9, "click", 1), event(10, "click", 1), event(11, "click", 6), event(12, "rating", 4, 5.0),
        event(13, "rating", 5, 3.0), event(14, "like", 4), event(15, "click", 99),
    ]  # fmt: skip
    found = report(events, "e")
    assert {arm: (each.users, each.slates) for arm, each in found.items()} == {"a": (2, 3), "b": (2, 2)}
    one, other = found["a"].metrics, found["b"].metrics
    assert one["clicks_per_slate"].value == pytest.approx(2 / 3)
    assert one["slates_clicked"].value == pytest.approx(1 / 3)
    assert one["empty"].value == pytest.approx(1 / 3)
    assert one["mean_rating"].value is None and one["clicks_per_slate"].difference is None
    assert (other["mean_rating"].value, other["likes_per_slate"].value, other["degraded"].value) == (4.0, 0.5, 0.5)
    assert other["clicks_per_slate"].difference == pytest.approx(-2 / 3)


def simulated(rates: dict[str, float], seed: int) -> list[LoggedEvent]:
    """Users of two arms, each with some slates and clicks at the arm's rate."""
    random, events = np.random.default_rng(seed), []
    for user in range(300):
        arm = "ab"[user % 2]
        for _ in range(int(random.integers(1, 6))):
            slate = len(events)
            events.append(impression(slate, f"u{user}", {"experiment": "e", "arm": arm}))
            if random.random() < rates[arm]:
                events.append(event(len(events), "click", slate))
    return events


def test_a_real_difference_is_sure_and_an_interval_holds_the_truth_as_often_as_it_says():
    better = report(simulated({"a": 0.1, "b": 0.4}, 1), "e")["b"].metrics["clicks_per_slate"]
    assert better.is_sure and better.difference_low is not None and better.difference_low > 0
    holds = [
        metric.difference_low <= 0 <= metric.difference_high
        for metric in (
            report(simulated({"a": 0.2, "b": 0.2}, seed), "e")["b"].metrics["clicks_per_slate"] for seed in range(20)
        )
    ]
    assert np.mean(holds) >= 0.8


def test_who_was_answered_instead_of_the_challenger_counts_as_the_challengers():
    events = [
        impression(1, "u1", {"role": "champion"}), impression(2, "u2", {"role": "challenger"}),
        impression(3, "u3", {"role": "champion", "instead": True}),
    ]  # fmt: skip
    found = report(events, ROLLOUT)
    assert [(arm, each.users) for arm, each in found.items()] == [("champion", 1), ("challenger", 2)]


def test_everything_is_read_page_by_page(tmp_path, monkeypatch):
    monkeypatch.setattr("serving.experiments.report.PAGE", 2)
    log = SqliteEventLog(tmp_path / "e.sqlite")
    log.append([{"event_id": str(n), "kind": "click", "time_s": 1.0, "payload": {}} for n in range(5)])
    assert [each.event_id for each in all_events(log)] == list("01234")
    log.close()
