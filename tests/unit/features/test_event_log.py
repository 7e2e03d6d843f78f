"""The event log keeps every record once, in order, whole batches at a time."""

from __future__ import annotations

import sqlite3
import threading
import time

import pytest

from configs.errors import InvalidRequest, Unavailable
from configs.event_settings import EventSettings
from features.background_writer import BackgroundWriter
from features.event_log import RedisEventLog, SqliteEventLog


def _record(event_id: str, **changes):
    return {"event_id": event_id, "kind": "impression", "time_s": 1.0, "user_id": "ann", "payload": {"k": 1}} | changes


@pytest.fixture
def log(tmp_path):
    log = SqliteEventLog(tmp_path / "deep" / "events.sqlite")
    yield log
    log.close()


@pytest.fixture(params=["embedded", "redis"])
def either(request, tmp_path):
    """A log of each kind: they keep one contract."""
    if request.param == "redis":
        url = request.getfixturevalue("redis_url")
        settings = EventSettings(redis_url=url, require_durable=False, redis_timeout_ms=10_000)
        opened = RedisEventLog(settings, str(tmp_path))
    else:
        opened = SqliteEventLog(tmp_path / "events.sqlite")
    yield opened
    opened.close()


def test_records_come_back_in_order_with_their_payload(either):
    log = either
    log.append([_record("a", payload={"ids": ["ü/1"], "x": None}), _record("b", kind="click", user_id=None)])
    log.append([])
    first, second = log.read()
    assert (first.event_id, first.kind, first.time_s, first.user_id) == ("a", "impression", 1.0, "ann")
    assert first.payload == {"ids": ["ü/1"], "x": None} and second.user_id is None
    assert [event.event_id for event in log.read(after=first.position)] == ["b"]
    assert [event.event_id for event in log.read(kind="click")] == ["b"]
    assert len(log.read(limit=1)) == 1


def test_a_repeated_event_is_kept_once_and_the_first_stays(either):
    log = either
    first, repeated = log.append([_record("a"), _record("a", kind="other")])
    assert first is not None and repeated is None
    again, second = log.append([_record("a", kind="third"), _record("b")])
    assert again is None and second is not None and second > first
    assert [(event.event_id, event.kind) for event in log.read()] == [("a", "impression"), ("b", "impression")]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"event_id": ""}, r"records\[1\].event_id"),
        ({"kind": None}, r"records\[1\].kind is None"),
        ({"time_s": float("nan")}, r"records\[1\].time_s is nan"),
        ({"time_s": "now"}, r"records\[1\].time_s"),
        ({"user_id": 3}, r"records\[1\].user_id is 3"),
        ({"payload": {1, 2}}, r"records\[1\] cannot be written"),
        ({"user_id": "\ud800"}, r"records\[1\] cannot be written"),
    ],
)
def test_a_wrong_record_refuses_its_whole_batch_by_position(either, changes, said):
    log = either
    with pytest.raises(InvalidRequest, match=said):
        log.append([_record("a"), _record("b") | changes])
    assert log.read() == []


def test_records_are_found_by_id_and_pending_ones_until_they_are_settled(either):
    log, is_pending = either, {"pending": True}
    records = [_record("a", **is_pending), _record("b"), _record("c", **is_pending), _record("ü é", **is_pending)]
    positions = log.append(records)
    assert set(log.find(["a", "ü é", "nobody"])) == {"a", "ü é"} and log.find([]) == {}
    assert log.find(["b"])["b"].payload == {"k": 1}
    assert [event.event_id for event in log.pending(["a", "b", "nobody"])] == ["a"]
    assert [event.event_id for event in log.overdue(0.0)] == ["a", "c", "ü é"]
    assert [event.event_id for event in log.overdue(0.0, limit=1)] == ["a"] and log.overdue(60.0) == []
    log.settle([positions[0], positions[3]])
    log.flush()
    assert [event.event_id for event in log.overdue(0.0)] == ["c"] and log.pending(["a"]) == []


def test_a_locked_log_is_unavailable_and_recovers(log, tmp_path, monkeypatch):
    log._connection.execute("PRAGMA busy_timeout = 20")
    other = sqlite3.connect(tmp_path / "deep" / "events.sqlite", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    with pytest.raises(Unavailable, match="locked"):
        log.append([_record("a")])
    other.execute("ROLLBACK")
    other.close()
    log.append([_record("a")])
    assert len(log.read()) == 1


def test_a_file_that_is_no_log_is_unavailable(tmp_path):
    (tmp_path / "x").write_bytes(b"not a database, but long enough to be read as one" * 9)
    with pytest.raises(Unavailable, match="event log"):
        SqliteEventLog(tmp_path / "x")


APPEND_MANY = """
import sys
from pathlib import Path
from features.event_log import SqliteEventLog

log, name = SqliteEventLog(Path(sys.argv[1])), sys.argv[2]
for start in range(0, 40, 4):
    ids = [f"{name}-{n}" for n in range(start, start + 4)] + [f"shared-{start}"]
    log.append([{"event_id": i, "kind": "k", "time_s": 1.0, "user_id": None, "payload": None} for i in ids])
log.close()
"""


def test_processes_writing_at_once_lose_and_double_nothing(run_python, tmp_path):
    file = tmp_path / "events.sqlite"
    writers = [run_python(APPEND_MANY, str(file), name) for name in ("one", "two")]
    for writer in writers:
        writer.communicate(timeout=60)
        assert writer.returncode == 0
    log = SqliteEventLog(file)
    ids = [event.event_id for event in log.read(limit=1000)]
    log.close()
    expected = {f"{name}-{n}" for name in ("one", "two") for n in range(40)} | {f"shared-{n}" for n in range(0, 40, 4)}
    assert len(ids) == len(set(ids)) and set(ids) == expected


class ListLog:
    """Keeps batches; fails as told."""

    def __init__(self):
        self.batches: list[list] = []
        self.failures: list[Exception] = []
        self.gate = threading.Event()
        self.gate.set()
        self.closed = False

    def append(self, records):
        self.gate.wait(10)
        if self.failures:
            raise self.failures.pop(0)
        if any(record["event_id"] == "bad" for record in records):
            raise InvalidRequest("bad", "records")
        self.batches.append(list(records))

    def close(self):
        self.closed = True

    @property
    def ids(self):
        return [record["event_id"] for batch in self.batches for record in batch]


def test_closing_writes_everything_that_waits_in_batches():
    log = ListLog()
    writer = BackgroundWriter(log, batch=10)
    assert all(writer.submit(_record(str(place))) for place in range(95))
    writer.close()
    assert log.ids == [str(place) for place in range(95)] and log.closed
    assert len(log.batches) <= 20 and max(map(len, log.batches)) <= 10
    assert (writer.written, writer.dropped, writer.waiting) == (95, 0, 0)


def test_records_are_written_soon_without_closing():
    log = ListLog()
    writer = BackgroundWriter(log, linger_s=0.01)
    writer.submit(_record("a"))
    end = time.monotonic() + 5
    while writer.written == 0 and time.monotonic() < end:
        time.sleep(0.005)
    assert log.ids == ["a"]
    writer.close()


def test_a_stuck_log_neither_blocks_nor_fails_the_caller():
    log = ListLog()
    log.gate.clear()
    writer = BackgroundWriter(log, capacity=5, batch=2, linger_s=0.0)
    started = time.perf_counter()
    taken = [writer.submit(_record(str(place))) for place in range(200)]
    assert time.perf_counter() - started < 10
    assert not taken[-1] and writer.dropped == taken.count(False) > 100
    log.gate.set()
    writer.close()
    assert len(log.ids) == taken.count(True)


def test_one_bad_record_costs_only_itself():
    log = ListLog()
    writer = BackgroundWriter(log)
    for event_id in ("a", "bad", "b"):
        writer.submit(_record(event_id))
    writer.close()
    assert log.ids == ["a", "b"] and (writer.written, writer.dropped) == (2, 1)


@pytest.mark.parametrize(
    ("failures", "kept"),
    [([Unavailable("busy")], 1), ([Unavailable("busy")] * 2, 0), ([RuntimeError("a bug")], 0)],
)
def test_a_failing_log_is_tried_again_once_and_never_ends_the_thread(failures, kept):
    log = ListLog()
    log.failures = list(failures)
    writer = BackgroundWriter(log, linger_s=0.0)
    writer.submit(_record("a"))
    end = time.monotonic() + 5
    while writer.written + writer.dropped < 1 and time.monotonic() < end:
        time.sleep(0.005)
    writer.submit(_record("b"))
    writer.close()
    assert log.ids == ["a", "b"][1 - kept :] and writer.dropped == 1 - kept


def test_after_closing_records_are_dropped_and_counted():
    writer = BackgroundWriter(ListLog())
    writer.close()
    assert not writer.submit(_record("late")) and writer.dropped == 1
    writer.close()
