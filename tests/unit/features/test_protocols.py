"""Protocols keep the rows they say, once each, and leak nothing from test to train."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import DataError
from features.datasets import Dataset
from features.protocols import DAY_S, PROTOCOLS, core, ctr_random, ctr_time, topn
from features.schema import FeatureSchema


def _dataset(users, items, values=None, times=None) -> Dataset:
    count = len(users)
    table = pa.table(
        {
            "user_id": pa.array([f"u{u}" for u in users], pa.string()),
            "item_id": pa.array([f"i{i}" for i in items], pa.string()),
            "value": pa.array([None] * count if values is None else values, pa.float32()),
            "time_s": pa.array([None] * count if times is None else times, pa.float64()),
        }
    )
    empty = pa.table({"user_id": pa.array([], pa.string())})
    return Dataset("d", FeatureSchema(), table, empty, empty.rename_columns(["item_id"]))


def _dense(rows: int = 4000, seed: int = 0) -> Dataset:
    rng = np.random.default_rng(seed)
    times = rng.uniform(0, 100 * DAY_S, rows)
    return _dataset(rng.integers(0, 40, rows), rng.integers(0, 50, rows), rng.integers(1, 6, rows), times)


def _core_by_hand(rows, k):
    while True:
        kept = [r for r in rows if sum(s[0] == r[0] for s in rows) >= k and sum(s[1] == r[1] for s in rows) >= k]
        if len(kept) == len(rows):
            return kept
        rows = kept


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 5)), min_size=1, max_size=30), st.integers(1, 4))
def test_core_equals_repeated_removal_by_hand(rows, k):
    users, items = np.array(rows).T
    mask = core(users, items, k)
    assert [row for row, kept in zip(rows, mask, strict=True) if kept] == _core_by_hand(rows, k)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_parts_are_disjoint_and_near_eight_to_one_to_one(name):
    split = PROTOCOLS[name](_dense())
    together = np.concatenate([split.train, split.valid, split.test])
    assert len(np.unique(together)) == len(together) == split.rows
    assert len(split.train) / split.rows == pytest.approx(0.8, abs=0.05)
    assert len(split.test) / split.rows == pytest.approx(0.1, abs=0.05)


@pytest.mark.parametrize("name", PROTOCOLS)
def test_the_same_data_gives_the_same_split(name):
    first, second = PROTOCOLS[name](_dense()), PROTOCOLS[name](_dense())
    assert np.array_equal(first.test, second.test)


def test_ctr_random_keeps_every_row_but_the_neutral_ones():
    data = _dense()
    assert ctr_random(data).rows == int((data.values != 3).sum())


def test_ctr_time_tests_on_later_days_and_on_known_users_and_items_only():
    data = _dense()
    split, times = ctr_time(data), data.times
    days = np.floor(times / DAY_S)
    assert days[split.train].max() < days[split.valid].min() <= days[split.valid].max() < days[split.test].min()
    users = np.array(data.interactions.column("user_id").to_pylist())
    assert set(users[split.test]) <= set(users[split.train])


def test_topn_gives_every_user_train_and_test_rows():
    data = _dense()
    split, users = topn(data), np.array(data.interactions.column("user_id").to_pylist())
    assert set(users[split.test]) == set(users[split.train])
    assert data.values[np.concatenate([split.train, split.test])].min() >= 3


def test_a_protocol_says_what_the_data_lacks():
    with pytest.raises(DataError, match="ctr-random needs values"):
        ctr_random(_dataset([1], [1]))
    with pytest.raises(DataError, match="ctr-time needs timestamps"):
        ctr_time(_dataset([1], [1], [5.0]))
    with pytest.raises(DataError, match="five positives"):
        ctr_time(_dataset([1], [1], [5.0], [1.0]))
    nine = np.arange(9)
    with pytest.raises(DataError, match="topn needs users and items with ten rows each, .* more interactions"):
        topn(_dataset(np.repeat(nine, 9), np.tile(nine, 9)))
    with pytest.raises(DataError, match="ten rows each of value 3 or more, .*use ctr-random"):
        topn(_dataset(np.repeat(nine, 20), np.tile(nine, 20), np.full(180, 2.0)))
