"""The catalogue answers by item index: who may be shown, what matches, and what to print."""

from __future__ import annotations

import numpy as np
import orjson
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import DataError, InvalidRequest
from features.catalogue import Catalogue
from features.encoding import Encoder
from features.schema import FeatureSchema


@pytest.fixture
def catalogue(dataset):
    return Catalogue(dataset.items, Encoder.fit(dataset.schema, dataset.users, dataset.items))


def _of(items: pa.Table) -> Catalogue:
    users = pa.table({"user_id": ["u"]})
    return Catalogue(items, Encoder.fit(FeatureSchema(), users, items))


def test_metadata_has_title_and_features_and_no_missing_value(catalogue):
    assert catalogue.metadata([3, 2, 6, 3]) == [
        {"title": "Two", "genre": ["x", "y", "z"], "price": 2, "brand": "b2"},
        {"title": "One", "genre": ["x"], "price": 1, "brand": "b1"},
        {"genre": ["y"], "brand": "b2"},
        {"title": "Two", "genre": ["x", "y", "z"], "price": 2, "brand": "b2"},
    ]
    assert catalogue.metadata([]) == []
    assert catalogue.ids([2, 6]) == ["i1", "i5"]


def test_a_caller_may_change_what_it_was_given(catalogue):
    catalogue.metadata([2])[0]["title"] = "changed"
    assert catalogue.metadata([2])[0]["title"] == "One"


@given(st.lists(st.none() | st.floats(), min_size=1, max_size=6))
def test_metadata_is_always_strict_json(numbers):
    catalogue = _of(pa.table({"item_id": [f"i{n}" for n in range(len(numbers))], "x": pa.array(numbers, pa.float64())}))
    for row in catalogue.metadata(range(2, len(numbers) + 2)):
        assert b"null" not in orjson.dumps(row)


def test_items_follow_the_encoder_whatever_the_order_of_the_table(dataset):
    encoder = Encoder.fit(dataset.schema, dataset.users, dataset.items)
    shuffled = dataset.items.take([4, 2, 0])
    catalogue = Catalogue(shuffled, encoder)
    assert len(catalogue) == 7
    assert [row.get("title") for row in catalogue.metadata(range(2, 7))] == ["One", None, "Three", None, None]


def test_two_rows_of_one_item_are_refused(dataset):
    encoder = Encoder.fit(dataset.schema, dataset.users, dataset.items)
    with pytest.raises(DataError, match="more than once"):
        Catalogue(pa.concat_tables([dataset.items, dataset.items.slice(0, 1)]), encoder)


MOMENT = st.none() | st.integers(-3, 3).map(float)


@given(
    st.lists(st.tuples(st.sampled_from([None, True, False]), MOMENT, MOMENT), min_size=1, max_size=8),
    st.lists(st.integers(-8, 8).map(lambda half: half / 2), min_size=1, max_size=8),
)
def test_eligibility_at_any_sequence_of_moments(items, moments):
    hidden, available, expires = zip(*items, strict=True)
    catalogue = _of(
        pa.table(
            {
                "item_id": [f"i{n}" for n in range(len(items))],
                "hidden": pa.array(hidden, pa.bool_()),
                "available_from_s": pa.array(available, pa.float64()),
                "expires_at_s": pa.array(expires, pa.float64()),
            }
        )
    )
    for now_s in moments:
        expected = [False, False] + [
            not h and (a is None or a <= now_s) and (e is None or now_s < e) for h, a, e in items
        ]
        assert catalogue.eligible(now_s).tolist() == expected


def test_eligibility_is_computed_once_until_something_changes():
    catalogue = _of(pa.table({"item_id": ["a", "b"], "expires_at_s": [10.0, None]}))
    assert catalogue.eligible(3.0) is catalogue.eligible(9.9)
    assert catalogue.eligible(10.0).sum() == 1
    with pytest.raises(ValueError, match="read-only"):
        catalogue.eligible(10.0)[0] = True


def test_padding_and_unknown_match_no_filter(catalogue):
    for text in ("brand is None", "not brand == 'b1'", "id is None", "price is None"):
        assert not catalogue.mask(text)[:2].any()
    assert catalogue.mask("brand is None").tolist() == [False] * 5 + [True, False]
    assert catalogue.mask("id in ['i1']") is catalogue.mask("id in ['i1']")


def test_a_filter_with_an_unknown_field_lists_the_known_ones(catalogue):
    with pytest.raises(InvalidRequest, match=r"\['brand', 'genre', 'id', 'item_id', 'price', 'title'\]"):
        catalogue.mask("colour == 'red'")


def test_codes_are_equal_where_values_are_and_zero_where_missing(catalogue):
    brand = catalogue.codes("brand")
    assert brand.dtype == np.int32 and brand[2] == brand[4] != brand[3] == brand[6]
    assert brand[[0, 1, 5]].tolist() == [0, 0, 0]
    genre = catalogue.codes("genre")
    assert genre.shape == (7, 3)
    assert genre[2, 0] == genre[3, 0] and genre[3, 1] == genre[6, 0] and len(set(genre[3])) == 3
    assert not genre[[0, 1, 4, 5]].any()
    with pytest.raises(InvalidRequest, match="no item field 'colour'; known fields"):
        catalogue.codes("colour")


def test_a_catalogue_of_bare_ids_works(dataset):
    catalogue = _of(pa.table({"item_id": ["ü/ b", "x" * 1024]}))
    assert catalogue.ids([2, 3]) == ["ü/ b", "x" * 1024]
    assert catalogue.metadata([2]) == [{}]
    assert catalogue.eligible(0.0).tolist() == [False, False, True, True]
    assert catalogue.mask("id == 'ü/ b'").tolist() == [False, False, True, False]
