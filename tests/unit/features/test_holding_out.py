"""Held-out events stay the same while a dataset grows, and the newest others are trained on."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest

from features.datasets import Dataset
from features.holding_out import ONE_IN, by_age, held_out, train_and_valid
from features.schema import ITEM_ID, TIME, USER_ID, VALUE, FeatureSchema


def dataset(count: int, timed: bool = True) -> Dataset:
    """Interactions of 50 users at random times."""
    rng = np.random.default_rng(3)
    times = rng.integers(1, 10**9, 5_000)[:count].astype(np.float64)
    columns = {
        USER_ID: pa.array([f"u{n % 50}" for n in range(count)]),
        ITEM_ID: pa.array([f"i{n % 97}" for n in range(count)]),
        VALUE: pa.array([1.0] * count, pa.float32()),
        TIME: pa.array(times) if timed else pa.nulls(count, pa.float64()),
    }
    ids = {name: pa.table({name: columns[name].unique()}) for name in (USER_ID, ITEM_ID)}
    return Dataset("d", FeatureSchema(), pa.table(columns), ids[USER_ID], ids[ITEM_ID])


@pytest.mark.parametrize("timed", [True, False])
def test_one_in_twenty_is_held_out_whatever_comes_later(timed):
    grown = dataset(5_000, timed)
    held = held_out(grown)
    assert 1 / ONE_IN - 0.02 < held.mean() < 1 / ONE_IN + 0.02
    assert np.array_equal(held_out(grown.take(np.arange(2_000))), held[:2_000])


def test_held_out_events_are_of_all_times():
    data = dataset(5_000)
    held = held_out(data)[by_age(data)]
    assert 0.3 < held[:2_500].sum() / held.sum() < 0.7


def test_the_newest_rows_are_trained_on_and_judged_by():
    data = dataset(5_000)
    held, times = held_out(data), data.times
    train, valid = train_and_valid(data, 950)
    assert len(train) == 950 and len(valid) == 50
    assert not held[train].any() and held[valid].all()
    assert times[train].min() > np.delete(times, train)[~np.delete(held, train)].max()
    assert times[valid].min() > np.delete(times, valid)[np.delete(held, valid)].max()


def test_without_a_limit_every_event_is_one_or_the_other():
    data = dataset(400)
    train, valid = train_and_valid(data, None)
    assert not set(train) & set(valid)
    assert len(train) == 400 - held_out(data).sum()


@pytest.mark.parametrize("timed", [True, False])
def test_where_chance_holds_none_out_one_is(timed):
    few = dataset(3, timed)
    found = held_out(few)
    assert found.sum() == 1
    assert not timed or few.times[found] == few.times.max()


def test_nothing_is_held_out_of_nothing():
    empty = dataset(1).take(np.zeros(0, np.int64))
    assert len(held_out(empty)) == 0
    assert replace(empty).times is None
