"""Waiting for a rollout: through every state to an answer, or to a reason."""

from __future__ import annotations

import pytest

from configs.errors import Unavailable
from deployments import rollout
from deployments.cluster import ClusterRecord
from deployments.rollout import await_ready

RECORD = ClusterRecord(1, 0.0, "b", "a", "d", "h", "s")


class Script:
    """Serve's states and the service's answers, one each a poll; the last one stays. Sleeping moves the clock."""

    def __init__(self, monkeypatch, states: list[str], answers: list[str | None]):
        self.states, self.answers, self.now_s = states, answers, 0.0
        monkeypatch.setattr(rollout, "application_status", lambda *_: (self.next(self.states), "said Serve"))
        monkeypatch.setattr(rollout, "why_not_ready", lambda *_: self.next(self.answers))
        monkeypatch.setattr(rollout, "time", self)

    @staticmethod
    def next(values: list):
        return values.pop(0) if len(values) > 1 else values[0]

    def monotonic(self) -> float:
        return self.now_s

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


def test_it_returns_when_the_application_runs_and_answers(monkeypatch):
    told = []
    Script(monkeypatch, ["ABSENT", "DEPLOYING", "DEPLOYING", "RUNNING"], ["not yet", None])
    await_ready(RECORD, "token", 60, told=told.append)
    assert told == ["ABSENT", "DEPLOYING", "RUNNING"]


def test_a_failed_deployment_is_raised_at_once_with_what_serve_said(monkeypatch):
    script = Script(monkeypatch, ["DEPLOYING", "DEPLOY_FAILED"], [None])
    with pytest.raises(Unavailable, match="said Serve"):
        await_ready(RECORD, "token", 60)
    assert script.now_s < 1


def test_a_running_application_that_is_not_ready_is_given_up_before_the_whole_timeout(monkeypatch):
    script = Script(monkeypatch, ["RUNNING"], ["no release has been promoted"])
    with pytest.raises(Unavailable, match="no release has been promoted"):
        await_ready(RECORD, "token", 600)
    assert script.now_s < 2 * rollout.PROXY_LAG_S


def test_a_deployment_that_never_ends_is_given_up_after_the_timeout(monkeypatch):
    script = Script(monkeypatch, ["DEPLOYING"], [None])
    with pytest.raises(Unavailable, match="DEPLOYING"):
        await_ready(RECORD, "token", 60)
    assert 60 < script.now_s < 62
