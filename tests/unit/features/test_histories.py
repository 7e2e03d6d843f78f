"""Histories hold what a user did before, and never the row that is being predicted."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from features.histories import HistoryIndex

ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(2, 9), st.integers(0, 12)), max_size=40)
LENGTH = 3


def _index(rows):
    users, items, times = (
        (np.array(column, np.int64) for column in zip(*rows, strict=True)) if rows else [np.zeros(0, int)] * 3
    )
    signals = np.where(items % 2, 2, 1).astype(np.int8)
    return HistoryIndex(users.astype(np.int32), items.astype(np.int32), signals, times.astype(np.float64))


def _padded(items: list[int]) -> list[int]:
    return (items[:LENGTH] + [0] * LENGTH)[:LENGTH]


@given(ROWS, st.integers(0, 5), st.integers(0, 13))
def test_before_gives_exactly_the_events_strictly_earlier(rows, user, time):
    history, signal = _index(rows).before(np.array([user]), np.array([float(time)]), LENGTH)
    # A brute-force search over the rows, in time order, stable among equal times.
    expected = [item for u, item, t in sorted(rows, key=lambda row: row[2]) if u == user and t < time][::-1]
    assert history[0].tolist() == _padded(expected)
    assert [(s > 0) for s in signal[0]] == [(i > 0) for i in history[0]]


@given(ROWS, st.integers(0, 5))
def test_latest_gives_the_newest_events_of_one_user_only(rows, user):
    history, signal = _index(rows).latest(np.array([user]), LENGTH)
    expected = [item for u, item, _ in sorted(rows, key=lambda row: row[2]) if u == user][::-1]
    assert history[0].tolist() == _padded(expected)
    assert signal[0].tolist() == [0 if not i else 2 if i % 2 else 1 for i in history[0]]


@given(ROWS.map(lambda rows: list({(u, i): (u, i, t) for u, i, t in rows}.values())), st.integers(0, 5))
def test_others_never_shows_the_target_item(rows, user):
    for target in range(2, 10):
        history, _ = _index(rows).others(np.array([user]), np.array([target]), LENGTH)
        expected = [i for u, i, _ in sorted(rows, key=lambda row: row[2]) if u == user and i != target][::-1]
        assert history[0].tolist() == _padded(expected)


def test_without_times_the_order_of_the_rows_is_time():
    index = HistoryIndex(np.zeros(3, np.int32), np.array([7, 8, 9], np.int32), np.full(3, 2, np.int8))
    assert index.latest(np.array([0]), 2)[0].tolist() == [[9, 8]]
