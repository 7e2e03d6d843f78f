"""An id found by its hash is the id found by its text."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from features.id_hashes import HashIndex, id_hashes

IDS = st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6), unique=True, max_size=40)


@given(IDS, IDS)
def test_an_id_has_the_row_that_a_dictionary_gives_it(known, others):
    rows = {text: 2 + place for place, text in enumerate(known)}
    asked = [*others, *known, *others[:3]]
    found = HashIndex(known, first=2, absent=1).rows(id_hashes(asked))
    assert found.dtype == np.int32
    assert found.tolist() == [rows.get(text, 1) for text in asked]


def test_a_large_catalogue_keeps_every_id_apart():
    ids = [f"Item {n} (é)" for n in range(50_000)]
    index = HashIndex(ids, first=0, absent=-1)
    assert np.array_equal(index.rows(id_hashes(ids)), np.arange(len(ids)))
    assert index.rows(id_hashes([f"{text}!" for text in ids])).max() == -1


def test_hashes_never_change_so_that_what_an_earlier_process_stored_is_found():
    # As `printf a | b2sum -l 64` prints it: 40f89e395b66422f.
    assert id_hashes(["a"]).tobytes() == bytes.fromhex("40f89e395b66422f")


def test_hashes_read_from_a_file_need_not_be_writable():
    hashes = np.frombuffer(id_hashes(["b", "z"]).tobytes(), np.uint64)
    assert HashIndex(["a", "b"], first=2, absent=1).rows(hashes).tolist() == [3, 1]
