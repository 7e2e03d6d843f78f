"""A writer of events in a process that is killed at a random point, and what it had acknowledged by then."""

from __future__ import annotations

import multiprocessing
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from pathlib import Path

from configs.errors import Unavailable
from configs.settings import Settings
from features.event_log import open_event_log
from features.event_log_commits import GroupCommit
from features.store import open_store

CALLERS = 4
BATCH = 5
USERS = 40
AGAIN_S = 0.02

_FORK = multiprocessing.get_context("fork")


def user_of(event_id: str) -> str:
    return f"user-{hash_of(event_id) % USERS}"


def hash_of(event_id: str) -> int:
    """The same in every process."""
    return int.from_bytes(event_id.encode()[-6:], "little")


def record_of(event_id: str) -> dict:
    """A click on an item of its own, so that a history shows each event."""
    return {
        "event_id": event_id,
        "kind": "click",
        "time_s": time.time(),
        "user_id": user_of(event_id),
        "pending": True,
        "payload": {"item_id": event_id, "value": None},
    }


def write_until_killed(settings: Settings, name: str, told: Connection) -> None:
    """Callers who each wait for an acknowledgement before they send more, and send again what was not acknowledged."""
    store = open_store(settings.store, settings.store_folder)
    commits = GroupCommit(open_event_log(settings), store)
    lock = threading.Lock()

    def call(caller: int) -> None:
        for number in range(10**9):
            ids = [f"{name}-{caller}-{number}-{place}" for place in range(BATCH)]
            records = [record_of(each) for each in ids]
            while True:
                try:
                    commits.submit(records).result()
                    break
                except Unavailable:
                    time.sleep(AGAIN_S)
            with lock:
                told.send(ids)

    with ThreadPoolExecutor(CALLERS) as pool:
        for each in [pool.submit(call, caller) for caller in range(CALLERS)]:
            each.result()


class Writer:
    """`write_until_killed` in a process of its own; what it tells is gathered by a thread."""

    def __init__(self, settings: Settings, name: str):
        self.acknowledged: list[str] = []
        receiver, sender = _FORK.Pipe(duplex=False)
        self._process = _FORK.Process(target=write_until_killed, args=(settings, name, sender), daemon=True)
        self._process.start()
        sender.close()
        self._reader = threading.Thread(target=self._gather, args=(receiver,), daemon=True)
        self._reader.start()

    def kill(self) -> list[str]:
        """SIGKILL; returns what it had acknowledged."""
        self._process.kill()
        self._process.join()
        self._reader.join()
        return self.acknowledged

    def _gather(self, receiver: Connection) -> None:
        while True:
            try:
                self.acknowledged += receiver.recv()
            except (EOFError, OSError):
                return


def killed_writers(settings: Settings, kills: int, seed: int) -> list[str]:
    """What writers, one after the other, had acknowledged when they were killed at random points."""
    chosen, acknowledged = random.Random(seed), []
    for number in range(kills):
        writer = Writer(settings, f"w{number}")
        _until(lambda w=writer: bool(w.acknowledged))
        time.sleep(chosen.uniform(0.0, 0.2))
        acknowledged += writer.kill()
    return acknowledged


def killed_server(settings: Settings, kill: Callable[[], None], start: Callable[[], None], kills: int) -> list[str]:
    """What one writer had acknowledged while the server that it writes to was killed again and again."""
    chosen, writer = random.Random(kills), Writer(settings, "r")
    for _ in range(kills):
        before = len(writer.acknowledged)
        _until(lambda b=before: len(writer.acknowledged) > b)
        time.sleep(chosen.uniform(0.0, 0.2))
        kill()
        start()
    time.sleep(0.5)
    return writer.kill()


def missing(settings: Settings, acknowledged: list[str]) -> tuple[list[str], list[str]]:
    """Acknowledged events that are not exactly once in the log, and not exactly once in a history."""
    log = open_event_log(settings)
    store = open_store(settings.store, settings.store_folder)
    try:
        left = GroupCommit(log, store)  # what a dead writer left behind is brought by the next one
        _until(lambda: not log.overdue(0.0))
        counts: dict[str, int] = {}
        after = 0
        while events := log.read(after, 10_000):
            after = events[-1].position
            for event in events:
                counts[event.event_id] = counts.get(event.event_id, 0) + 1
        users = sorted({user_of(each) for each in acknowledged})
        seen: dict[str, int] = {}
        for row in store.fetch(users):
            for item in row.items if row else ():
                seen[item] = seen.get(item, 0) + 1
        left.close()
    finally:
        store.close()
    return [e for e in acknowledged if counts.get(e) != 1], [e for e in acknowledged if seen.get(e) != 1]


def _until(holds: Callable[[], bool], timeout_s: float = 60.0) -> None:
    end_s = time.monotonic() + timeout_s
    while not holds():
        if time.monotonic() > end_s:
            raise TimeoutError("the writer acknowledges nothing")
        time.sleep(0.005)


def settings_in(home: Path, **more: object) -> Settings:
    """Settings of a home of its own, with a history long enough to hold every event."""
    return Settings.model_validate({"home": home, "dataset": "mine", "store": {"history_limit": 65_536}, **more})
