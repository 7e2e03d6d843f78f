"""A release comes to serve, or is given up, in a running service that somebody asks all the time: nobody notices."""

from __future__ import annotations

import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import httpx
import pytest

from benchmarks.worse_releases import republish, returning_nothing
from pool.repository import ReleaseRepository
from tests.e2e.conftest import USERS, replicas

PAUSE_S = 0.02
QUICK = ("--begin-with", "shadow", "--shadow-share", "0.5", "--hold-s", "1", "--least-requests", "5", "--canary", "0.5")


class Callers:
    """Asks for one user after the other, all the time; a call without an answer counts as a status of its error."""

    def __init__(self, address: str):
        self._address, self._ended = address, threading.Event()
        self.statuses: Counter[int | str] = Counter()
        self.releases: Counter[str] = Counter()
        self.lengths: Counter[int] = Counter()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def _ask(self) -> None:
        number = 0
        with httpx.Client(base_url=self._address, timeout=30, trust_env=False) as client:
            while not self._ended.wait(PAUSE_S):
                number += 1
                body = {"user_id": f"пользователь/{number % USERS}", "k": 5, "exclude_seen": False, "timeout_ms": 1_000}
                try:
                    reply = client.post("/v1/recommend", json=body)
                except httpx.TransportError as error:
                    self.statuses[f"{time.strftime('%X')} {error!r}"] += 1
                    continue
                self.statuses[reply.status_code] += 1
                if reply.status_code == 200:
                    said = reply.json()
                    self.releases[said["versions"]["release"]] += 1
                    self.lengths[said["returned"]] += 1

    @contextmanager
    def asking(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._ended.set()
            self._thread.join(60)


@pytest.fixture
def repository(home) -> ReleaseRepository:
    return ReleaseRepository(home / "releases" / "mine")


def test_a_good_release_comes_to_serve_and_a_rollback_returns_to_the_one_before(service, recpool, repository):
    before, champion = replicas(service), str(repository.champion())
    version = republish(repository, champion)
    callers = Callers(service.address)
    with callers.asking():
        recpool("release", "rollout", version, *QUICK)
        assert repository.aliases() == {"champion": version}
        time.sleep(1)
        rolled = json.loads(recpool("release", "rollback", "--reason", "a test", "--json").stdout)
        assert (rolled["version"], rolled["served"]) == (champion, True)
        time.sleep(1)
    assert set(callers.statuses) == {200} and set(callers.lengths) == {5}
    assert set(callers.releases) == {champion, version}
    assert replicas(service) == before
    events = [each.event for each in repository.history(version)]
    assert events[0] == "rollout begun" and events[-1] == "promoted"
    assert repository.history(champion)[-1].reason == "a test"


def test_a_release_that_returns_nothing_is_rolled_back_by_itself_and_nobody_sees_it(service, recpool, repository):
    champion = str(repository.champion())
    version = republish(repository, champion, returning_nothing)
    callers = Callers(service.address)
    with callers.asking():
        said = recpool("release", "rollout", version, "--begin-with", "canary", "--canary", "0.5", code=1)
    assert "empty" in said.stdout
    assert set(callers.statuses) == {200} and set(callers.lengths) == {5} and set(callers.releases) == {champion}
    assert repository.aliases() == {"champion": champion}
    assert "empty" in repository.history(version)[-1].reason
    report = httpx.get(f"{service.address}/v1/releases/rollout", timeout=30, trust_env=False).json()
    assert (report["phase"], report["version"]) == ("rolled_back", version)
