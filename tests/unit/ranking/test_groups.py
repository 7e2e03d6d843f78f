"""Grouping rows changes what is computed together, never what a row sees."""

from __future__ import annotations

import numpy as np
import pytest

from ranking.groups import GroupedRows


def seen(grouped: GroupedRows, rng=None) -> dict[int, list[int]]:
    """Items each row may look at, most recent first."""
    batch = grouped.batch(grouped.groups(rng))
    out = {}
    for g, rows in enumerate(batch.rows):
        for c, row in enumerate(rows):
            if row >= 0:
                assert row not in out, "a row came twice"
                out[int(row)] = batch.history[g][batch.mask[g, c] > 0].tolist()
    return out


@pytest.fixture(scope="module")
def rows(synthetic):
    return synthetic.encoded(synthetic.dataset())[1]


@pytest.mark.parametrize("size", [1, 3, 16])
@pytest.mark.parametrize("shuffled", [False, True])
def test_every_row_sees_the_events_strictly_before_it(rows, size, shuffled):
    rng = np.random.default_rng(1) if shuffled else None
    views = seen(GroupedRows(rows, rows, 5, size, "earlier"), rng)
    assert sorted(views) == list(range(len(rows)))
    for row, items in views.items():
        before = (rows.users == rows.users[row]) & (rows.times < rows.times[row])
        order = np.flatnonzero(before)[np.argsort(-rows.times[before])]
        assert items == rows.items[order][:5].tolist()


@pytest.mark.parametrize("size", [1, 3, 16])
def test_every_row_sees_its_users_other_events(rows, size):
    views = seen(GroupedRows(rows, rows, 99, size, "others"), np.random.default_rng(2))
    assert sorted(views) == list(range(len(rows)))
    for row, items in views.items():
        mine = np.flatnonzero((rows.users == rows.users[row]) & (rows.items != rows.items[row]))
        assert items == rows.items[mine[np.argsort(-rows.times[mine])]].tolist()


def test_repeated_events_of_the_target_are_hidden_too(rows):
    twice = rows.take(np.concatenate([np.arange(len(rows)), np.arange(5)]))
    views = seen(GroupedRows(twice, twice, 99, 4, "others"))
    for row in range(5):
        assert int(twice.items[row]) not in views[row]


def test_a_user_without_events_has_an_empty_view(rows):
    none = rows.take(np.zeros(0, int))
    views = seen(GroupedRows(rows.take(np.arange(3)), none, 9, 2, "others"))
    assert views == {0: [], 1: [], 2: []}


def test_epochs_differ_and_repeat_with_their_seed(rows):
    grouped = GroupedRows(rows, rows, 5, 4, "others")
    first, again, second = (grouped.groups(np.random.default_rng([0, epoch])) for epoch in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not (first.shape == second.shape and np.array_equal(first, second))


def test_the_data_may_have_no_times(rows):
    untimed = type(rows)(rows.users, rows.items, rows.values, rows.signals, None)
    views = seen(GroupedRows(untimed, untimed, 99, 4, "others"))
    assert len(views[0]) == np.count_nonzero(rows.users == rows.users[0]) - 1
