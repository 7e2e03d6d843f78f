"""Unit tests run without Ray: what starts it fails. Those that share trained models run in one worker."""

from __future__ import annotations

from pathlib import Path

import pytest
import ray

TRAINED = ("ranking", "recall", "serving/works")
"""Folders whose tests share models trained once a process; under ``--dist loadgroup`` each folder is one worker's."""


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        for folder in TRAINED:
            if item.path.is_relative_to(here / folder):
                item.add_marker(pytest.mark.xdist_group(folder))


@pytest.fixture(autouse=True)
def _no_ray(monkeypatch):
    # For the one test only: integration tests of the same session do start Ray.
    def refuse(*_, **__):
        raise AssertionError("a unit test may not start Ray; put the test into tests/integration")

    monkeypatch.setattr(ray, "init", refuse)
