"""The encoder gives a row the same numbers offline and online, and imputes what it does not know."""

from __future__ import annotations

import math

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from configs.errors import ArtifactError, InvalidRequest
from features.encoding import FIRST_KNOWN, PADDING, UNKNOWN, Encoder, Vocabulary
from features.schema import FeatureField, FeatureSchema, HistorySpec
from features.vocabulary import as_token

SCHEMA = FeatureSchema(
    fields=(
        FeatureField(name="city", entity="user", kind="categorical"),
        FeatureField(name="age", entity="user", kind="numeric"),
        FeatureField(name="tags", entity="user", kind="multi", max_values=3),
        FeatureField(name="level", entity="user", kind="categorical"),
    ),
    history=HistorySpec(length=3, positive_at=4.0),
)
WORDS = st.sampled_from(["a", "b", "Zürich", "a/b c", "", "1", "true"])
USERS = st.lists(
    st.fixed_dictionaries(
        {
            "user_id": st.text(min_size=1, max_size=5),
            "city": st.none() | WORDS,
            "age": st.none() | st.floats(allow_nan=True, allow_infinity=True, width=32),
            "tags": st.none() | st.lists(WORDS, max_size=5),
            "level": st.none() | st.integers(-3, 3),
        }
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda row: row["user_id"],
)


def _table(rows: list[dict]) -> pa.Table:
    kinds = {"user_id": pa.string(), "city": pa.string(), "age": pa.float64(), "level": pa.int64()}
    kinds["tags"] = pa.list_(pa.string())
    return pa.table({name: pa.array([row[name] for row in rows], kind) for name, kind in kinds.items()})


def _items(ids: list[str]) -> pa.Table:
    return pa.table({"item_id": ids})


@given(USERS)
def test_a_row_is_encoded_alike_from_a_table_and_from_a_mapping(rows):
    table = _table(rows)
    encoder = Encoder.fit(SCHEMA, table, _items(["i"]))
    offline = encoder.encode_users(table.to_pylist())
    # Online a row is a mapping from JSON: a missing value is left out, an integer may come as a float.
    online = encoder.encode_users(
        [
            {
                name: float(value) if name == "level" else value
                for name, value in row.items()
                if value is not None and not (name == "age" and not math.isfinite(value))
            }
            for row in rows
        ]
    )
    for part in ("cat", "num", "multi"):
        np.testing.assert_array_equal(getattr(offline, part), getattr(online, part))


CONTEXT = FeatureSchema(
    fields=(
        FeatureField(name="hour", entity="context", kind="numeric"),
        FeatureField(name="city", entity="user", kind="categorical"),
        FeatureField(name="device", entity="context", kind="categorical"),
        FeatureField(name="age", entity="user", kind="numeric"),
    )
)


@given(st.lists(st.tuples(st.none() | WORDS, st.none() | st.floats(width=32)), max_size=12), st.integers(0, 12))
def test_context_is_encoded_alike_from_interactions_and_from_a_request(rows, fitted):
    devices, hours = [device for device, _ in rows], [hour for _, hour in rows]
    table = pa.table({"device": pa.array(devices, pa.string()), "hour": pa.array(hours, pa.float64())})
    users = pa.table({"user_id": ["u", "v"], "city": ["a", "b"], "age": [1.0, 2.0]})
    encoder = Encoder.fit(CONTEXT, users, _items(["i"]), table[:fitted])
    offline = encoder.encode_context(table)
    sent = [{"device": d, "hour": h} for d, h in rows]
    online = encoder.encode_users([{"user_id": "u", "city": "b", "age": 2.0, **row} for row in sent])
    assert offline.cat.dtype == np.int32 and offline.num.dtype == np.float32
    np.testing.assert_array_equal(offline.cat, online.cat[:, 2:])
    np.testing.assert_array_equal(offline.num, online.num[:, 1:])


def test_interactions_that_lack_a_context_column_are_imputed():
    encoder = Encoder.fit(CONTEXT, pa.table({"user_id": ["u"]}), _items(["i"]), pa.table({"hour": [1.0, 3.0]}))
    batch = encoder.encode_context(pa.table({"item_id": ["i", "i"]}))
    assert batch.cat.tolist() == [[UNKNOWN], [UNKNOWN]] and batch.num.tolist() == [[0.0], [0.0]]


@given(USERS)
def test_a_batch_of_one_equals_its_row_in_a_batch_of_many(rows):
    encoder = Encoder.fit(SCHEMA, _table(rows), _items(["i"]))
    together = encoder.encode_users(rows)
    for place, row in enumerate(rows):
        alone = encoder.encode_users([row])
        assert np.array_equal(alone.cat[0], together.cat[place])
        assert np.array_equal(alone.num[0], together.num[place])
        assert np.array_equal(alone.multi[0], together.multi[place])


@given(USERS)
def test_encoded_values_are_finite_and_within_the_embedding_tables(rows):
    encoder = Encoder.fit(SCHEMA, _table(rows[: len(rows) // 2 + 1]), _items(["i"]))
    batch = encoder.encode_users(rows)
    assert np.isfinite(batch.num).all()
    assert (batch.cat < np.array(encoder.cat_sizes("user", "context"))).all()
    assert (batch.multi < np.array(encoder.multi_sizes("user"))[:, None]).all()
    assert (batch.cat >= UNKNOWN).all()


@given(USERS)
def test_an_encoder_read_back_from_disk_encodes_the_same(tmp_path_factory, rows):
    encoder = Encoder.fit(SCHEMA, _table(rows), _items(["i", "j"]))
    file = tmp_path_factory.mktemp("encoder") / "encoder.json"
    encoder.save(file)
    again = Encoder.load(file)
    assert np.array_equal(again.encode_users(rows).cat, encoder.encode_users(rows).cat)
    assert np.array_equal(again.encode_users(rows).num, encoder.encode_users(rows).num)
    assert again.schema == encoder.schema


@pytest.mark.parametrize("missing", [None, float("nan"), float("inf"), "nan"])
def test_a_missing_number_is_the_training_median(missing):
    users = pa.table({"user_id": ["u", "v", "w"], "age": [1.0, 2.0, 9.0]})
    encoder = Encoder.fit(SCHEMA, users, _items(["i"]))
    # Mean 4 and population deviation sqrt(38 / 3), by hand.
    expected = (2.0 - 4.0) / math.sqrt(38 / 3)
    assert encoder.encode_users([{"age": missing}]).num[0, 0] == pytest.approx(expected)


def test_a_null_in_an_integer_column_is_imputed_too():
    users = pa.table({"user_id": ["u", "v", "w"], "age": pa.array([1, None, 3], pa.int64())})
    encoder = Encoder.fit(SCHEMA, users, _items(["i"]))
    assert encoder.encode_users(users.to_pylist()).num[1, 0] == pytest.approx(0.0)


@pytest.mark.parametrize("huge", [1e300, -1e300, 10**400])
def test_a_number_too_large_for_a_model_is_imputed(huge):
    users = pa.table({"user_id": ["u", "v"], "age": [1.0, 3.0]})
    encoder = Encoder.fit(SCHEMA, users, _items(["i"]))
    assert encoder.encode_users([{"age": huge}]).num[0, 0] == pytest.approx(0.0)


def test_text_in_a_number_field_is_refused_with_field_and_row():
    encoder = Encoder.fit(SCHEMA, pa.table({"user_id": ["u"], "age": [1.0]}), _items(["i"]))
    with pytest.raises(InvalidRequest, match=r"age \(row 1\): 'old'") as caught:
        encoder.encode_users([{"age": 3}, {"age": "old"}])
    assert caught.value.field == "age"


@pytest.mark.parametrize("stored", ["old", [1], {}])
def test_a_stored_value_that_is_no_number_can_be_imputed_and_named(stored):
    encoder = Encoder.fit(SCHEMA, _table([{**dict.fromkeys(SCHEMA.names("user")), "user_id": "u"}]), _items(["i"]))
    kept, unreadable = encoder.readable({"age": stored, "city": "Oslo"})
    assert kept == {"city": "Oslo"} and unreadable == ("age",)
    assert np.array_equal(encoder.encode_users([kept]).num, encoder.encode_users([{}]).num)
    whole = {"age": "30", "city": 5}
    assert encoder.readable(whole) == (whole, ())


@pytest.mark.parametrize("odd", [5, 2.5, True, {"a": 1}, ["a", None], [], ""])
def test_any_json_value_in_a_multi_valued_field_is_encoded(odd):
    encoder = Encoder.fit(SCHEMA, pa.table({"user_id": ["u"], "tags": [["a"]]}), _items(["i"]))
    assert encoder.encode_users([{"tags": odd}]).multi.shape == (1, 1, 3)


def test_nan_in_a_categorical_column_is_missing_and_not_a_value():
    users = pa.table({"user_id": ["u", "v"], "level": [1.0, float("nan")]})
    encoder = Encoder.fit(SCHEMA, users, _items(["i"]))
    assert encoder.encode_users(users.to_pylist()).cat[1, 2] == UNKNOWN


@pytest.mark.parametrize("same", [1, 1.0, "1", np.int32(1), np.float64(1)])
def test_spellings_of_one_value_share_a_token(same):
    assert as_token(same) == "1"


def test_ids_outside_the_vocabulary_fall_into_the_unknown_bucket():
    vocabulary = Vocabulary(["a", "b"])
    assert vocabulary.indices(["a", "zz", None, "b"]).tolist() == [FIRST_KNOWN, UNKNOWN, UNKNOWN, FIRST_KNOWN + 1]
    assert vocabulary.value(FIRST_KNOWN) == "a"


def test_a_vocabulary_that_holds_an_id_twice_is_refused():
    with pytest.raises(ArtifactError, match="'a'"):
        Vocabulary(["a", "b", "a"])


def test_the_item_table_has_a_padding_row_and_an_unknown_row(dataset):
    encoder = Encoder.fit(dataset.schema, dataset.users, dataset.items)
    table = encoder.item_table(dataset.items)
    assert len(table) == len(dataset.items) + 2
    assert table.cat[PADDING].tolist() == [PADDING] * table.cat.shape[1]
    assert table.cat[UNKNOWN].tolist() == [UNKNOWN] * table.cat.shape[1]
    assert table.cat[:, 0].tolist() == list(range(7))
    assert np.isfinite(table.num).all()


def test_history_keeps_the_most_recent_known_items_with_their_signal():
    encoder = Encoder.fit(SCHEMA, pa.table({"user_id": ["u"]}), _items(["a", "b", "c", "d"]))
    items = encoder.item_ids.indices(["gone", "d", "c", "b", "a"])
    history, signal = encoder.encode_histories([items], [np.array([5, 5, 1, float("nan"), 5])])
    assert history.tolist() == [[5, 4, 3]]
    assert signal.tolist() == [[2, 1, 2]]


@pytest.mark.parametrize("content", [b"", b"{}", b"[]", b"\x80", b'{"schema": 3}'])
def test_a_file_that_is_no_encoder_is_refused_by_name(tmp_path, content):
    file = tmp_path / "encoder.json"
    file.write_bytes(content)
    with pytest.raises(ArtifactError, match="encoder.json"):
        Encoder.load(file)
