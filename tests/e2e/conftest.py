"""The real thing: `recpool` commands on somebody's own data, and the service they bring up."""

from __future__ import annotations

import csv
import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

from deployments.cluster import Cluster

USERS, ITEMS, EVENTS = 80, 60, 2_000
COMMAND_TIMEOUT_S = 280


@dataclass(frozen=True)
class Service:
    """A running service: what `recpool up --json` said, and the home it runs in."""

    address: str
    release: str
    said: dict
    home: Path

    @property
    def cluster(self) -> Cluster:
        return Cluster(self.home)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="session")
def recpool(home) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run a `recpool` command against the session's home; fails the test unless it exits with ``code``."""
    variables = {
        "RECPOOL_HOME": str(home),
        "RECPOOL_DATASET": "mine",
        "RECPOOL_SERVING__PORT": str(free_port()),
    }
    environment = {**os.environ, **variables}

    def run(*words: str, code: int = 0, **more: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "deployments.cli", *words],
            env={**environment, **more},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
        )
        assert done.returncode == code, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    return run


@pytest.fixture(scope="session")
def own_data(tmp_path_factory) -> Path:
    """Interactions with nothing but two ids, which hold slashes, spaces and other scripts."""
    file = tmp_path_factory.mktemp("data") / "clicks.csv"
    random = np.random.default_rng(7)
    users, items = random.integers(0, USERS, EVENTS), random.zipf(1.3, EVENTS) % ITEMS
    with file.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["who", "what"])
        writer.writerows((f"пользователь/{u}", f"товар {i}/é") for u, i in zip(users, items, strict=True))
    return file


@pytest.fixture(scope="session")
def service(recpool, own_data, home) -> Iterator[Service]:
    """Own data, ingested, trained on and served by `recpool up`; ended by `recpool down`."""
    recpool("ingest", str(own_data), "--column", "user_id=who", "--column", "item_id=what")
    try:
        said = json.loads(recpool("up", "--json").stdout)
        yield Service(said["address"], said["release"], said, home)
    finally:
        recpool("down")
        shutil.rmtree(Cluster(home).folders.sockets, ignore_errors=True)
    assert Cluster(home).members() == []
