"""One local Ray cluster for the whole test session, started when the first test asks for it."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import ray
from ray import serve

OBJECT_STORE_BYTES = 80 * 2**20
CORES = 4
POOL_DEVICES = ("pool-a", "pool-b")
"""Devices that tests of the pool may lease; Ray counts their slices."""
WORKS = Path(__file__).parent / "works"
"""Modules that workers can import by name."""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def cluster() -> Iterator[None]:
    """Ray on this machine, without dashboard. More cores than there are: tests wait more than they work."""
    patch = pytest.MonkeyPatch()
    patch.setenv("RAY_worker_niceness", "0")
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    patch.setenv("PYTHONPATH", str(WORKS))
    ray.init(
        num_cpus=CORES,
        resources={f"device/{device}": 1.0 for device in POOL_DEVICES},
        include_dashboard=False,
        object_store_memory=OBJECT_STORE_BYTES,
        log_to_driver=False,
        configure_logging=False,
    )
    yield
    ray.shutdown()
    patch.undo()


@pytest.fixture(scope="session")
def serve_address(cluster) -> Iterator[str]:
    """Serve's HTTP address on the session's cluster; applications choose their own route prefix."""
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    yield f"http://127.0.0.1:{port}"
    serve.shutdown()
