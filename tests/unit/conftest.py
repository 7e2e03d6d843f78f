"""Unit tests run without Ray: what starts it fails."""

from __future__ import annotations

import pytest
import ray


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch):
    # For the one test only: integration tests of the same session do start Ray.
    def refuse(*_, **__):
        raise AssertionError("a unit test may not start Ray; put the test into tests/integration")

    monkeypatch.setattr(ray, "init", refuse)
