"""Small scenarios, as plain values."""

from __future__ import annotations

from copy import deepcopy

import pytest

from configs.layers import merged
from pool.simulator.reading import load

PROFILE = {"batch_rows": [1, 8, 32], "p50_ms": [8.0, 32.0, 120.0], "p99_ms": [12.0, 48.0, 180.0], "start_s": 10}
SERVICE = {
    "name": "home",
    "replicas": 4,
    "min_milli": 300,
    "slo_ms": 200,
    "max_batch_rows": 32,
    "profiles": {"gpu": PROFILE},
    "demand": {"rate_per_s": 100},
}
TREE = {
    "seed": 3,
    "duration_s": 60,
    "interval_s": 5,
    "kinds": {"gpu": {"start_s": 10, "price_per_hour": 2.0}},
    "fleet": [{"kind": "gpu", "zones": 2, "racks": 2, "devices": 1}],
    "services": [SERVICE],
}


@pytest.fixture
def tree():
    """A scenario with one service, changed by what is given: `tree(seed=4)`."""

    def make(**changed):
        return merged(deepcopy(TREE), changed)

    return make


@pytest.fixture
def service():
    """The scenario's service, changed by what is given."""

    def make(**changed):
        return merged(deepcopy(SERVICE), changed)

    return make


@pytest.fixture
def loaded(tree):
    """The scenario, checked."""

    def make(**changed):
        return load(tree(**changed))

    return make
