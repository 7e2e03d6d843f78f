"""Histories of any length become one padded batch."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from features.encoding import Encoder
from features.schema import FeatureSchema, HistorySpec

EVENTS = st.lists(st.tuples(st.integers(0, 6), st.sampled_from([1.0, 3.9999999, 4.0, 5.0, math.nan])), max_size=9)


def encoder(positive_at: float | None, length: int = 4) -> Encoder:
    schema = FeatureSchema(history=HistorySpec(length=length, positive_at=positive_at))
    return Encoder.fit(schema, pa.table({"user_id": ["u"]}), pa.table({"item_id": list("abcde")}))


def packed(rows, positive_at):
    items = [np.array([item for item, _ in row], np.int32) for row in rows]
    values = [np.array([value for _, value in row], np.float64) for row in rows]
    return encoder(positive_at).encode_histories(items, values)


@given(st.lists(EVENTS, min_size=1, max_size=5), st.none() | st.just(4.0))
def test_each_row_holds_its_first_known_events_and_padding(rows, positive_at):
    history, signal = packed(rows, positive_at)
    kept = [[event for event in row if event[0] >= 2][:4] for row in rows]
    width = max(1, *map(len, kept))
    assert history.shape == signal.shape == (len(rows), width)
    assert (history.dtype, signal.dtype) == (np.int32, np.int8)
    for place, row in enumerate(kept):
        padding = [0] * (width - len(row))
        liked = [1 if positive_at is not None and value < positive_at else 2 for _, value in row]
        assert history[place].tolist() == [item for item, _ in row] + padding
        assert signal[place].tolist() == liked + padding


@given(EVENTS, st.none() | st.just(4.0))
def test_online_signals_are_those_of_training(row, positive_at):
    known = [event for event in row if event[0] >= 2][:4]
    _, signal = packed([row], positive_at)
    assert signal[0, : len(known)].tolist() == encoder(positive_at).signals(np.array([v for _, v in known])).tolist()


@pytest.mark.parametrize("row", [[], [(1, 5.0)], [(0, 5.0), (1, 1.0)]])
def test_a_history_without_known_events_is_one_place_of_padding(row):
    history, signal = packed([row], 4.0)
    assert history.tolist() == [[0]] and signal.tolist() == [[0]]
