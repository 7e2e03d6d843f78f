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

import numpy as np
import pytest

from deployments.cluster import Cluster

USERS, ITEMS, EVENTS = 80, 60, 2_000
COMMAND_TIMEOUT_S = 550


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


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("home")


@pytest.fixture(scope="module")
def recpool(home) -> Commands:
    return commands(home, RECPOOL_DATASET="mine")


@pytest.fixture(scope="module")
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


@pytest.fixture(scope="module")
def service(recpool, own_data) -> Iterator[Service]:
    """Own data, ingested, trained on and served."""
    recpool("ingest", str(own_data), "--column", "user_id=who", "--column", "item_id=what")
    with brought_up(recpool) as service:
        yield service


@pytest.fixture(scope="module")
def movielens(tmp_path_factory) -> Iterator[Service]:
    """What `make up` brings up on a bare machine: MovieLens-1M, trained by the quick recipe."""
    with brought_up(commands(tmp_path_factory.mktemp("ml"))) as service:
        yield service
