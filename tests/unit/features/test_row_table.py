"""A table of rows that are replaced and added shows what a plain array with the same writes would."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from features.row_table import RowTable

ROWS, MOST = 6, 40
PUTS = st.lists(st.lists(st.integers(2, MOST - 1), min_size=1, max_size=9, unique=True), max_size=12)


@settings(max_examples=60, deadline=None)
@given(PUTS, st.lists(st.integers(0, MOST + 5), min_size=1, max_size=30))
def test_rows_are_those_last_put_and_otherwise_the_base_or_the_unknown_item(puts, asked):
    base = np.arange(ROWS * 2, dtype=np.float32).reshape(ROWS, 2)
    table, plain = RowTable(base), {item: base[item] for item in range(ROWS)}
    for turn, items in enumerate(puts):
        rows = np.array([[100 * turn + item, -turn] for item in items], np.float32)
        table.put(np.array(items, np.int32), rows)
        plain |= dict(zip(items, rows, strict=True))
    found = table.take(np.array(asked, np.int32))
    assert np.array_equal(found, [plain.get(item, base[1]) for item in asked])
    assert len(table) == max(plain) + 1
    assert np.array_equal(base, np.arange(ROWS * 2, dtype=np.float32).reshape(ROWS, 2))


def test_indices_of_any_shape_are_taken():
    table = RowTable(np.zeros((4, 3), np.float32))
    table.put(np.array([9], np.int32), np.ones((1, 3), np.float32))
    assert table[np.array([[2, 9], [9, 0]], np.int32)].sum(-1).tolist() == [[0, 3], [3, 0]]
    assert table.take(np.zeros((2, 0), np.int32)).shape == (2, 0, 3)
