"""What a caller was told is kept is kept, and enters the histories whatever breaks in between."""

from __future__ import annotations

import time

import pytest

from configs.errors import InvalidRequest, Overloaded, Unavailable
from configs.event_settings import EventSettings
from features import event_log_commits
from features.event_log import RedisEventLog, SqliteEventLog
from features.event_log_commits import GroupCommit

WAIT_S = 20


class Histories:
    def __init__(self):
        self.calls: list[dict] = []
        self.is_away = False

    def record_many(self, events):
        if self.is_away:
            raise Unavailable("away")
        self.calls.append({user: [each.item_id for each in of_user] for user, of_user in events.items()})


@pytest.fixture
def store():
    return Histories()


@pytest.fixture(params=["embedded", "redis"])
def open_log(request, tmp_path):
    """Open the test's log; any number of times."""
    opened = []

    def open_():
        if request.param == "redis":
            url = request.getfixturevalue("redis_url")
            settings = EventSettings(redis_url=url, require_durable=False, redis_timeout_ms=10_000)
            opened.append(RedisEventLog(settings, str(tmp_path)))
        else:
            opened.append(SqliteEventLog(tmp_path / "e.sqlite"))
        return opened[-1]

    yield open_
    for log in opened:
        log.close()


@pytest.fixture
def quick(monkeypatch):
    """Look for what was left behind without waiting."""
    for name in ("ROUND_S", "OVERDUE_S", "STORE_RETRY_S"):
        monkeypatch.setattr(event_log_commits, name, 0.01)


def click(event_id: str, user: str = "ann", **changes) -> dict:
    about = {"kind": "click", "time_s": 5.0, "user_id": user, "pending": True, "payload": {"item_id": f"of {event_id}"}}
    return {"event_id": event_id} | about | changes


def until(holds) -> None:
    end_s = time.monotonic() + WAIT_S
    while not holds():
        assert time.monotonic() < end_s
        time.sleep(0.005)


def test_an_acknowledged_event_is_in_log_and_history(open_log, store):
    commits = GroupCommit(open_log(), store)
    kept = commits.submit([click("a"), click("b", "bob"), click("a")]).result(WAIT_S)
    assert kept.new == [True, True, False] and kept.in_store
    assert store.calls == [{"ann": ["of a"], "bob": ["of b"]}]
    commits.close()
    log = open_log()
    assert [each.event_id for each in log.read()] == ["a", "b"]
    assert log.overdue(0) == [] and log.find(["b", "c"])["b"].user_id == "bob"


def test_while_the_store_is_away_events_are_kept_and_brought_when_it_is_back(open_log, store, quick):
    commits = GroupCommit(open_log(), store)
    store.is_away = True
    kept = commits.submit([click("a")]).result(WAIT_S)
    assert kept.new == [True] and not kept.in_store
    until(lambda: commits.store_is_away)
    store.is_away = False
    until(lambda: commits.counts["brought_later"] == 1)
    assert store.calls == [{"ann": ["of a"]}]
    assert commits.submit([click("b")]).result(WAIT_S).in_store
    commits.close()
    assert open_log().overdue(0) == []


def test_what_a_writer_left_behind_when_it_died_is_brought_by_another(open_log, store, quick):
    open_log().append([click("a"), click("seen", kind="impression", pending=False)])
    commits = GroupCommit(open_log(), store)
    until(lambda: store.calls)
    assert store.calls == [{"ann": ["of a"]}]
    commits.close()


def test_a_repeat_of_an_event_whose_writer_died_enters_the_history_as_it_was_logged(open_log, store):
    open_log().append([click("a")])
    commits = GroupCommit(open_log(), store)
    kept = commits.submit([click("a", payload={"item_id": "other"})]).result(WAIT_S)
    assert kept.new == [False] and store.calls == [{"ann": ["of a"]}]
    assert commits.submit([click("a")]).result(WAIT_S).in_store and len(store.calls) == 1
    commits.close()


def test_a_bad_record_fails_its_own_batch_only(open_log, store):
    commits = GroupCommit(open_log(), store)
    futures = [commits.submit([click(each)]) for each in ("a", "", "b")]
    with pytest.raises(InvalidRequest):
        futures[1].result(WAIT_S)
    assert futures[0].result(WAIT_S).new == futures[2].result(WAIT_S).new == [True]
    commits.close()


class Broken:
    """A log that does not answer."""

    def append(self, records):
        raise Unavailable("no log")

    def overdue(self, older_than_s, limit=1000):
        raise Unavailable("no log")

    def flush(self):
        raise Unavailable("no log")

    def close(self):
        """Nothing to let go of."""


def test_a_log_that_does_not_answer_acknowledges_nothing_and_too_many_waiting_are_refused(store):
    commits = GroupCommit(Broken(), store, capacity=2)  # type: ignore[arg-type]
    with pytest.raises(Unavailable, match="no log"):
        commits.submit([click("a")]).result(WAIT_S)
    commits._lock.acquire()  # so that nothing is taken meanwhile
    commits._waiting = 2
    commits._lock.release()
    with pytest.raises(Overloaded):
        commits.submit([click("b")])
    assert not store.calls
    commits.close()
    with pytest.raises(Unavailable, match="closed"):
        commits.submit([click("c")])


def test_a_server_that_may_lose_what_it_acknowledges_is_refused(redis_url, tmp_path):
    log = RedisEventLog(EventSettings(redis_url=redis_url, redis_timeout_ms=10_000), str(tmp_path))
    with pytest.raises(Unavailable, match="appendfsync always"):
        log.append([click("a")])
    log.close()
