"""The real thing: `recpool` commands on somebody's own data, and the service they bring up."""

from __future__ import annotations

import csv
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
import numpy as np
import pytest

from deployments.cluster import Cluster

USERS, ITEMS, EVENTS = 80, 60, 2_000
COMMAND_TIMEOUT_S = 550
POOL = {"RECPOOL_POOL__RUNTIME__ENABLED": "true"}
SHADOW = {"RECPOOL_PLAN__GATEWAY__SHADOWS": "1"}
MODELS = {"RECPOOL_INFERENCE__ENABLED": "true"}


@dataclass(frozen=True)
class Service:
    """A running service: what `recpool up --json` said, the home it runs in, and a shell's variables for it."""

    address: str
    release: str
    said: dict
    home: Path
    environment: dict[str, str]

    @property
    def cluster(self) -> Cluster:
        return Cluster(self.home)


def replicas(service: Service) -> dict[str, set[int]]:
    """Process ids of the running replicas, by deployment."""
    record = service.cluster.record()
    headers = {"Authorization": f"Bearer {service.cluster.token()}"}
    found = httpx.get(f"{record.dashboard}/api/serve/applications/", headers=headers, timeout=30).json()
    deployments = found["applications"]["recpool"]["deployments"]
    return {name: {r["pid"] for r in each["replicas"] if r["state"] == "RUNNING"} for name, each in deployments.items()}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@dataclass(frozen=True)
class Commands:
    """`recpool` commands against one home; a call fails the test unless it exits with ``code``."""

    home: Path
    environment: dict[str, str]

    def __call__(self, *words: str, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "deployments.cli", *words],
            env={**os.environ, **self.environment, **more},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
        )
        assert done.returncode == code, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done


@contextmanager
def brought_up(recpool: Commands) -> Iterator[Service]:
    """The home's service, from `recpool up` to `recpool down`; nothing of it is left afterwards."""
    try:
        said = json.loads(recpool("up", "--json").stdout)
        yield Service(said["address"], said["release"], said, recpool.home, recpool.environment)
    finally:
        recpool("down")
        shutil.rmtree(Cluster(recpool.home).folders.sockets, ignore_errors=True)
    assert Cluster(recpool.home).members() == []


def commands(home: Path, **more: str) -> Commands:
    return Commands(home, {"RECPOOL_HOME": str(home), "RECPOOL_SERVING__PORT": str(free_port()), **more})


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "running" in metafunc.fixturenames:
        data = "movielens" if "movielens" in metafunc.fixturenames else "own"
        metafunc.parametrize("running", [data], indirect=True, scope="package")


@pytest.fixture(scope="package")
def running(request, tmp_path_factory) -> Iterator[Service]:
    """One service at a time: pytest runs the tests of one together, and ends it before the other begins."""
    folder = tmp_path_factory.mktemp(request.param)
    recpool = commands(folder, **POOL)
    if request.param == "own":
        recpool = commands(folder, RECPOOL_DATASET="mine", **POOL, **SHADOW, **MODELS)
        recpool("ingest", str(clicks(folder)), "--column", "user_id=who", "--column", "item_id=what")
    with brought_up(recpool) as service:
        yield service


@pytest.fixture(scope="package")
def service(running) -> Service:
    """Somebody's own data, ingested, trained on and served; a test leaves it as good as it found it."""
    return running


@pytest.fixture(scope="package")
def movielens(running) -> Service:
    """What `make up` brings up on a bare machine: MovieLens-1M, trained by the quick recipe."""
    return running


@pytest.fixture
def recpool(service) -> Commands:
    return Commands(service.home, service.environment)


@pytest.fixture
def home(service) -> Path:
    return service.home


def clicks(folder: Path) -> Path:
    """Interactions with nothing but two ids, which hold slashes, spaces and other scripts."""
    file = folder / "clicks.csv"
    random = np.random.default_rng(7)
    users, items = random.integers(0, USERS, EVENTS), random.zipf(1.3, EVENTS) % ITEMS
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["who", "what"])
        writer.writerows((f"пользователь/{u}", f"товар {i}/é") for u, i in zip(users, items, strict=True))
    return file
