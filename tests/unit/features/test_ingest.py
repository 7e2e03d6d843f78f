"""Anyone's files become a dataset; what is wrong with them is said with file, line and remedy."""

from __future__ import annotations

import gzip

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from configs.errors import DataError
from features.datasets import Dataset
from features.encoding import Encoder
from features.ingest import ingest
from features.ingest_spec import IngestSpec, TableSpec

IDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r\n\0"), min_size=1, max_size=12)


def _write(folder, name, content):
    file = folder / name
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    return file


def _ingest(folder, interactions, users=None, items=None, **options):
    files = {"interactions": interactions, "users": users, "items": items}
    paths = {name: _write(folder, f"{name}.csv", content) for name, content in files.items() if content is not None}
    return ingest(IngestSpec(name="d", **paths, **options))


def test_ids_alone_are_enough(tmp_path):
    data, report = _ingest(tmp_path, "user_id,item_id\nann,a/b c\nbob,日本\nann,日本\n")
    assert data.users.column("user_id").to_pylist() == ["ann", "bob"]
    assert data.items.column("item_id").to_pylist() == ["a/b c", "日本"]
    assert not data.has_values and not data.has_times
    assert data.schema.fields == () and data.schema.history.positive_at is None
    assert (report.rows, report.users, report.items, report.bad_rows) == (3, 2, 2, 0)


def test_columns_are_mapped_typed_and_reported(tmp_path):
    data, report = _ingest(
        tmp_path,
        "uid,sku,stars,ts\nu1,i1,5,2024-01-05T00:00:00Z\nu2,i2,1,2024-01-06\nu1,i3,3,1704412800\n",
        users="uid,age,city\nu1,30,Oslo\nu2,,Bern\n",
        items="sku,name,year,tags\ni1,One,1999,a|b\ni2,Two,2001,b\ni3,Three,,a|b\n",
        columns={"user_id": "uid", "item_id": "sku", "value": "stars", "time_s": "ts"},
        types={"item.year": "categorical"},
    )
    assert [(f.entity, f.name, f.kind) for f in data.schema.fields] == [
        ("user", "age", "numeric"),
        ("user", "city", "categorical"),
        ("item", "year", "categorical"),
        ("item", "tags", "multi"),
    ]
    assert data.schema.history.positive_at == 5
    assert data.times.tolist() == [1704412800.0, 1704499200.0, 1704412800.0]
    assert data.items.column("title").to_pylist() == ["One", "Two", "Three"]
    assert data.items.column("year").to_pylist() == ["1999", "2001", None]
    assert data.items.column("tags").to_pylist() == [["a", "b"], ["b"], ["a", "b"]]
    assert report.types["user.age"].startswith("numeric") and report.types["item.year"] == "categorical (declared)"
    assert any("positive_at 5" in note for note in report.notes)


def test_the_result_can_be_encoded_saved_and_loaded(tmp_path):
    data, _ = _ingest(
        tmp_path,
        "user_id,item_id,rating\nu,i,5\nv,j,1\n",
        items="item_id,price,hidden,expires_at_s\ni,1.5,true,\nj,,0,2030-01-01\n",
    )
    data.save(tmp_path / "out")
    again = Dataset.load(tmp_path / "out")
    assert again.items.to_pylist() == data.items.to_pylist()
    assert again.items.column("hidden").to_pylist() == [True, False]
    assert again.items.column("expires_at_s").to_pylist() == [None, 1893456000.0]
    encoder = Encoder.fit(again.schema, again.users, again.items)
    assert len(encoder.item_table(again.items)) == 4


def test_parquet_with_numeric_ids_joins_csv_with_text_ids(tmp_path):
    table = pa.table({"user": pa.array([1.0, 2.0]), "item": [10, 11], "ts": pa.array([1, 2], pa.timestamp("s"))})
    pq.write_table(table, tmp_path / "inter.pq")
    items = _write(tmp_path, "items.csv", "item_id,price\n10,3\n11,4\n")
    data, report = ingest(IngestSpec(name="d", interactions=tmp_path / "inter.pq", items=items))
    assert data.users.column("user_id").to_pylist() == ["1", "2"]
    assert data.items.column("item_id").to_pylist() == ["10", "11"]
    assert data.times.tolist() == [1.0, 2.0] and report.items == 2


def test_one_mapping_serves_files_that_call_an_id_differently(tmp_path):
    data, _ = _ingest(
        tmp_path, "user_id,item_id\nu,i\n", users="uid,age\nu,3\n", items="id,price\ni,4\n",
        columns={"user_id": "uid", "item_id": "id"},
    )  # fmt: skip
    assert data.users.to_pylist() == [{"user_id": "u", "age": 3.0}]
    assert data.items.to_pylist() == [{"item_id": "i", "price": 4.0}]


def test_ids_are_bounded_in_characters_as_requests_are(tmp_path):
    longest = "😀" * 1024
    data, report = _ingest(tmp_path, f"user_id,item_id\nu,{longest}\nu,{longest}x\n", skip_bad=True)
    assert data.items.column("item_id").to_pylist() == [longest] and report.bad_rows == 1


def test_entities_seen_only_in_interactions_get_a_row_without_features(tmp_path):
    data, _ = _ingest(tmp_path, "user_id,item_id\nu,i\nu,j\n", items="item_id,price\ni,3\n")
    assert data.items.to_pylist() == [{"item_id": "i", "price": 3.0}, {"item_id": "j", "price": None}]


def test_the_last_of_duplicate_rows_wins_and_is_counted(tmp_path):
    data, report = _ingest(
        tmp_path,
        "user_id,item_id\nu,i\n",
        users="user_id,age\nu,1\nv,2\nu,3\nu,4\n",
        items="item_id,price\ni,1\ni,2\n",
    )
    assert data.users.to_pylist() == [{"user_id": "v", "age": 2.0}, {"user_id": "u", "age": 4.0}]
    assert (report.duplicate_users, report.duplicate_items) == (2, 1)


BAD = 'user_id,item_id,value,time_s\nu,i,1,1\n,i,1,1\nu\nu,i,x,1\n\nu,i,1,never\n"u\n2",i,1,1\nu,i,inf,1\nu,i,1,1\n'


def test_bad_rows_are_refused_with_their_lines_and_reasons(tmp_path):
    with pytest.raises(DataError) as caught:
        _ingest(tmp_path, BAD)
    message = caught.value.message
    assert "5 of 8 rows are bad" in message and "skip" in message
    for line, reason in [
        (3, "user_id = None is not an id"),
        (4, "has 1 cell, the header has 4"),
        (5, "value = 'x' is not a finite number"),
        (7, "time_s = 'never'"),
        # A quoted cell spans lines 8 and 9.
        (10, "value = 'inf'"),
    ]:
        assert f"interactions.csv:{line}: {reason}" in message


def test_bad_rows_can_be_skipped_and_are_counted(tmp_path):
    data, report = _ingest(tmp_path, BAD, skip_bad=True)
    assert len(data.interactions) == 3 and report.bad_rows == 5
    assert [row.line for row in report.bad] == [3, 4, 5, 7, 10]
    assert data.users.column("user_id").to_pylist() == ["u", "u\n2"]


def test_a_small_share_of_bad_rows_is_dropped_and_twenty_are_shown(tmp_path):
    rows = ["u,i"] * 2970 + ["u"] * 30
    data, report = _ingest(tmp_path, "user_id,item_id\n" + "\n".join(rows))
    assert len(data.interactions) == 2970 and report.bad_rows == 30 and len(report.bad) == 20
    with pytest.raises(DataError, match="31 of 3001"):
        _ingest(tmp_path, "user_id,item_id\n" + "\n".join([*rows, "u"]))


def test_a_wrong_cell_of_a_declared_number_is_a_bad_row(tmp_path):
    with pytest.raises(DataError, match=r"items.csv:3: price = 'free' is not a finite number"):
        _ingest(tmp_path, "user_id,item_id\nu,i\n", items="item_id,price\ni,1\nj,free\n", types={"price": "numeric"})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "the file is empty"),
        (b"\n\n", "the file is empty"),
        (b"user_id,item_id\n", "no usable row"),
        (b"user_id,item_id", "no usable row"),
        (b"user_id,user_id,item_id\na,b,c\n", r"names columns \['user_id'\] more than once"),
        (b"who,what\na,b\n", r"no column for user_id; .*--column user_id=THEIR_COLUMN, .*\['who', 'what'\]"),
        (bytes(range(256)) * 40, "binary data"),
        (b"PAR1 and then nonsense", "not a readable Parquet file"),
        ("user_id,item_id\nü,i\n".encode("utf-16"), "UTF-16"),
        (b"user_id,item_id\n" + b"\xfc,i\n" * 5, "not in the file's encoding; name another"),
        (b'user_id,item_id\nu,"i\n' + b"u,i\n" * 50, "interactions.csv:2: a quote is opened and never closed"),
        ("usér,item_id\nu,i\n".encode("latin-1"), "line 1 is not utf-8"),
    ],
)
def test_hopeless_files_are_refused_by_name(tmp_path, content, said):
    with pytest.raises(DataError, match=said) as caught:
        _ingest(tmp_path, content)
    assert "interactions.csv" in caught.value.message


def test_missing_and_compressed_and_encoded_files(tmp_path):
    with pytest.raises(DataError, match="nowhere.csv: cannot be read"):
        ingest(IngestSpec(name="d", interactions=tmp_path / "nowhere.csv"))
    packed = _write(tmp_path, "rows.csv.gz", gzip.compress(b"user_id,item_id\nu,i\n"))
    assert len(ingest(IngestSpec(name="d", interactions=packed))[0].interactions) == 1
    for encoding in ("latin-1", "utf-16", "utf-8-sig"):
        file = _write(tmp_path, "rows.csv", "user_id;item_id\nü;i\n".encode(encoding))
        data, _ = ingest(IngestSpec(name="d", interactions=TableSpec(path=file, encoding=encoding)))
        assert data.users.column("user_id").to_pylist() == ["ü"]
    with pytest.raises(DataError, match="unknown encoding: klingon"):
        ingest(IngestSpec(name="d", interactions=TableSpec(path=file, encoding="klingon")))


def test_wrong_names_in_the_spec_list_the_right_ones(tmp_path):
    rows, items = "user_id,item_id\nu,i\n", "item_id,price\ni,1\n"
    with pytest.raises(DataError, match=r"'sku'.*\['user_id', 'item_id'\]"):
        _ingest(tmp_path, rows, columns={"item_id": "sku"})
    with pytest.raises(DataError, match=r"'cost'.*no file has.*'price'"):
        _ingest(tmp_path, rows, items=items, columns={"amount": "cost"})
    with pytest.raises(DataError, match=r"types: no feature column \['prize'\].*item.price"):
        _ingest(tmp_path, rows, items=items, types={"prize": "numeric"})
    with pytest.raises(DataError, match=r"separators: no feature column \['tags'\]"):
        _ingest(tmp_path, rows, items=items, separators={"tags": "|"})


def test_further_columns_of_interactions_become_context_only_when_declared(tmp_path):
    rows = "user_id,item_id,device,clicked\nu,i,phone,1\nu,i,tv,0\n"
    data, report = _ingest(tmp_path, rows, types={"context.device": "categorical"})
    assert [(f.entity, f.name) for f in data.schema.fields] == [("context", "device")]
    assert data.interactions.column("device").to_pylist() == ["phone", "tv"]
    assert report.types["context.clicked"].startswith("ignore")
    assert "clicked" not in data.interactions.column_names


def test_progress_runs_from_reading_to_checking(tmp_path):
    seen = []
    file = _write(tmp_path, "i.csv", "user_id,item_id\nu,i\n")
    ingest(IngestSpec(name="d", interactions=file), lambda stage, share: seen.append((stage, share)))
    assert [stage for stage, _ in seen] == ["reading interactions"] + ["checking interactions"] * 2
    assert all(0 <= share <= 1 for _, share in seen)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(IDS, IDS), min_size=1, max_size=8))
def test_every_pair_of_ids_survives_as_written(tmp_path, pairs):
    quoted = ['"{}","{}"'.format(*(cell.replace('"', '""') for cell in pair)) for pair in pairs]
    data, report = _ingest(tmp_path, "user_id,item_id\n" + "\n".join(quoted) + "\n")
    rows = data.interactions.to_pylist()
    assert [(row["user_id"], row["item_id"]) for row in rows] == pairs
    assert report.bad_rows == 0
    assert len(set(data.items.column("item_id").to_pylist())) == len(data.items)


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.binary(max_size=80))
def test_any_bytes_give_a_dataset_or_a_data_error(tmp_path, content):
    for start in (b"", b"user_id,item_id,value\n", b"user_id\titem_id\n"):
        try:
            data, report = _ingest(tmp_path, start + content, skip_bad=True)
        except DataError:
            continue
        assert len(data.interactions) == report.rows


def test_a_hundred_thousand_rows_are_all_read(tmp_path):
    rows = "".join(f"u{n % 900},i{n % 700},{n % 5 + 1},{n}\n" for n in range(100_000))
    data, _ = _ingest(tmp_path, "user_id,item_id,value,time_s\n" + rows)
    assert len(data.interactions) == 100_000
