"""Changes of aliases: atomic, durable, one winner, nothing forgotten."""

from __future__ import annotations

import threading

import pytest

from configs.errors import ArtifactError, Conflict
from pool.alias_log import AliasLog
from pool.local_entries import LocalEntries
from pool.remote_releases import RemoteReleases


@pytest.fixture(params=["folder", "memory", "file"])
def entries(request, tmp_path):
    """The same log in a folder, in an object store in memory, and in a folder by its URL."""
    if request.param == "folder":
        return LocalEntries(tmp_path / "aliases")
    return RemoteReleases(f"memory://{tmp_path}" if request.param == "memory" else f"file://{tmp_path}")


def champion(version: str):
    return lambda table: {**table, "champion": version}


def test_a_log_without_entries_has_the_table_from_before(entries):
    assert AliasLog(entries, lambda: {"champion": "3"}).table() == {"champion": "3"}
    assert AliasLog(entries).changes() == []


def test_a_change_is_what_the_next_reader_sees(entries):
    AliasLog(entries, lambda: {"shadow": "1"}, clock=lambda: 5.0).change("promoted", "2", "better", champion("2"))
    before, change = AliasLog(entries).changes()
    assert before.aliases == {"shadow": "1"}
    assert AliasLog(entries).table() == change.aliases == {"shadow": "1", "champion": "2"}
    assert (change.number, change.at_s, change.event, change.version) == (2, 5.0, "promoted", "2")
    assert change.reason == "better"


def test_of_two_writers_who_read_the_same_table_one_wins_and_the_other_is_told(entries):
    log = AliasLog(entries)

    def slow(table):
        AliasLog(entries).change("promoted", "7", "quicker", champion("7"))
        return {**table, "champion": "8"}

    with pytest.raises(Conflict, match=r"release 8 is not promoted.*release 7 is promoted \(quicker\)"):
        log.change("promoted", "8", "", slow)
    assert log.table() == {"champion": "7"}


def test_a_note_is_kept_whatever_else_is_written(entries):
    log = AliasLog(entries)
    log.change("promoted", "1", "", champion("1"))
    threads = [threading.Thread(target=log.note, args=("rejected", str(n), "worse")) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(each.version for each in log.changes() if each.event == "rejected") == [str(n) for n in range(8)]
    assert log.table() == {"champion": "1"}


def test_an_entry_by_half_is_named_with_the_remedy(tmp_path):
    log = AliasLog(LocalEntries(tmp_path / "aliases"))
    log.change("promoted", "1", "", champion("1"))
    (tmp_path / "aliases" / "00000002.json").write_text('{"number": 2')
    with pytest.raises(ArtifactError, match=r"aliases/00000002\.json.*restore it"):
        log.table()


def test_a_writer_that_dies_before_its_entry_is_whole_leaves_nothing(tmp_path, monkeypatch):
    entries = LocalEntries(tmp_path / "aliases")
    monkeypatch.setattr("os.link", lambda *_: (_ for _ in ()).throw(OSError("no space")))
    with pytest.raises(OSError, match="no space"):
        AliasLog(entries).change("promoted", "1", "", champion("1"))
    monkeypatch.undo()
    assert AliasLog(entries).changes() == []
    assert AliasLog(entries).change("promoted", "1", "", champion("1")).number == 1
