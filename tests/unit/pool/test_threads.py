"""The libraries of a process keep to its slice, on every thread that was told, and none is loaded for that."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import faiss
import pytest
import torch

from pool.engines.threads import LIMIT, pin_process, pin_threads


def settings() -> tuple[int, int]:
    return faiss.omp_get_max_threads(), torch.get_num_threads()


@pytest.fixture(autouse=True)
def as_before(monkeypatch):
    monkeypatch.setenv(LIMIT, "9")
    for_faiss, for_torch = settings()
    yield
    faiss.omp_set_num_threads(for_faiss)
    torch.set_num_threads(for_torch)


@pytest.mark.parametrize("count", [1, 2])
def test_pinning_holds_for_this_thread_and_for_an_executor_that_pins_its_own(count):
    pin_threads(count)
    assert settings() == (count, count)
    with ThreadPoolExecutor(1, initializer=pin_threads, initargs=(count,)) as executor:
        assert executor.submit(settings).result() == (count, count)


def test_a_process_is_pinned_as_often_as_services_start_in_it():
    """torch's pool for operators side by side can be set once a process; later calls must not fail for it."""
    for count in (1, 2, 1):
        pin_process(count)
        assert settings() == (count, count)
    assert os.environ[LIMIT] == "9"  # what this process starts is not its concern


@pytest.mark.parametrize("absent", ["faiss", "torch"])
def test_a_library_that_is_not_loaded_finds_its_limit_when_it_loads(monkeypatch, absent):
    """That both libraries keep to it is seen in tests/unit/pool/gate/test_cpu.py, in a process of its own."""
    monkeypatch.delitem(sys.modules, absent)
    pin_process(3)
    assert absent not in sys.modules
    assert os.environ[LIMIT] == "3"
