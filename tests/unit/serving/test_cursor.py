import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import InvalidRequest
from serving.cursor import MAX_ITEMS, decode_cursor, encode_cursor, item_hashes
from serving.schemas import MAX_CURSOR


@given(st.lists(st.text(min_size=1), max_size=50))
def test_a_cursor_gives_back_the_hashes_it_was_made_of(ids):
    hashes = item_hashes(ids)
    assert decode_cursor(encode_cursor(hashes)).tolist() == hashes.tolist()


@given(st.text())
def test_any_other_text_is_refused_by_name(text):
    try:
        decode_cursor(text)
    except InvalidRequest as error:
        assert error.field == "cursor"


def test_the_longest_cursor_fits_the_documented_bound():
    assert len(encode_cursor(np.zeros(MAX_ITEMS, np.uint32))) <= MAX_CURSOR
    with pytest.raises(InvalidRequest):
        decode_cursor(encode_cursor(np.zeros(MAX_ITEMS + 1, np.uint32)))
