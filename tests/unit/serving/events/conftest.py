"""An intake on a log in a folder of its own, and a feature store in memory that can go away."""

from __future__ import annotations

from collections import defaultdict

import pytest

from configs.errors import Unavailable
from configs.event_settings import EventSettings
from features.event_log import SqliteEventLog
from features.event_log_commits import GroupCommit
from serving.events.intake import EventIntake

NOW_S = 1_800_000_000.0


class Histories:
    """Keeps (item, value, time) by user, each once, as a feature store does."""

    def __init__(self):
        self.rows: dict[str, set] = defaultdict(set)
        self.is_away = False

    def record_many(self, events):
        if self.is_away:
            raise Unavailable("away")
        for user, of_user in events.items():
            self.rows[user] |= {(event.item_id, event.value, event.time_s) for event in of_user}


class Clock:
    now_s = NOW_S

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store() -> Histories:
    return Histories()


@pytest.fixture
def event_log(tmp_path, clock):
    """A second connection to the intake's log."""
    log = SqliteEventLog(tmp_path / "events.sqlite", clock=clock)
    yield log
    log.close()


@pytest.fixture
async def intake(tmp_path, store, clock):
    settings = EventSettings(max_batch=20, join_wait_s=0)
    logs = [SqliteEventLog(tmp_path / "events.sqlite", clock=clock) for _ in range(2)]
    intake = EventIntake(settings, logs[0], GroupCommit(logs[1], store), clock)
    yield intake
    intake.close()
