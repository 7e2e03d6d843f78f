"""A real service for one benchmark: brought up on a copy of the home's data, and ended with all that it started."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import httpx
import numpy as np
import orjson
import psutil

from benchmarks.load import post
from configs.settings import Settings, load_settings
from deployments.cluster import Cluster
from deployments.plain_http import request
from features.datasets import Dataset
from features.schema import USER_ID

CLI = "deployments.cli"
DATA = ("datasets", "releases", "store")
REPLICA = "ray::ServeReplica:recpool:"
CONTROLLER = "ray::ServeController"
HAPROXY_MANAGER = "ray::HAProxyManager"


@dataclass(frozen=True)
class Live:
    """A running service."""

    settings: Settings
    port: int

    @property
    def home(self) -> Path:
        return self.settings.home

    def processes(self, title: str) -> list[psutil.Process]:
        """Processes of the service whose title begins so, such as ``ray::ServeReplica:recpool:gateway``."""
        return [p for p in Cluster(self.home).members() if _title(p).startswith(title)]

    def replicas(self, deployment: str = "") -> list[psutil.Process]:
        return self.processes(REPLICA + deployment)

    def running(self) -> dict[str, list[psutil.Process]]:
        """Replicas that take requests, by deployment; empty while Serve cannot say."""
        cluster = Cluster(self.home)
        record = cluster.record()
        assert record is not None
        try:
            headers = {"Authorization": f"Bearer {cluster.token()}"}
            url = f"{record.dashboard}/api/serve/applications/"
            found = request("GET", url, 5.0, headers=headers).json()["applications"]["recpool"]
        except (httpx.HTTPError, ValueError, KeyError):
            return {}
        alive = {p.pid: p for p in self.replicas()}
        return {
            name: [alive[r["pid"]] for r in each["replicas"] if r["state"] == "RUNNING" and r["pid"] in alive]
            for name, each in found["deployments"].items()
        }

    def haproxy(self) -> list[psutil.Process]:
        """HAProxy; more than one while an older one finishes what it began."""
        return [p for p in Cluster(self.home).members() if _name(p) == "haproxy"]

    def requests(self, count: int, seed: int = 0, k: int = 10, **body: object) -> list[bytes]:
        """Recommend calls for users drawn at random from the data set."""
        users = Dataset.load(self.settings.dataset_folder).users.column(USER_ID).to_pylist()
        chosen = np.random.default_rng(seed).integers(len(users), size=count)
        return [post("/v1/recommend", orjson.dumps({"user_id": users[i], "k": k, **body})) for i in chosen]


@contextmanager
def live_service(profile: str = "default", program: str = CLI, **environment: str) -> Iterator[Live]:
    """`recpool up` in a home of its own, until the block ends.

    Args:
        program: module that stands in for the command line.
        environment: settings by variable, ``RECPOOL_SERVING__LANES="2"`` for instance.
    """
    port = int(environment.setdefault("RECPOOL_SERVING__PORT", str(_free_port())))
    source = Path(os.environ.get("RECPOOL_HOME", "var"))
    home = Path(tempfile.mkdtemp(prefix="rp-"))
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # an ended benchmark ends its service, too
    try:
        for name in DATA:
            if (source / name).is_dir():  # else `recpool up` makes it
                shutil.copytree(source / name, home / name)
        environment |= {"RECPOOL_HOME": str(home)}
        try:
            said = json.loads(_recpool(program, environment, "up", "--profile", profile, "--json"))
            assert said["address"].endswith(f":{port}")
            with patch.dict(os.environ, environment):
                settings = load_settings(profile)
            yield Live(settings, port)
        finally:
            _recpool(CLI, environment, "down")
    finally:
        signal.signal(signal.SIGTERM, before)
        shutil.rmtree(home, ignore_errors=True)


def resident_bytes(process: psutil.Process) -> int:
    """Memory of a process alone, shared pages left out; 0 when it is gone."""
    try:
        return process.memory_full_info().uss
    except psutil.Error:
        return 0


def _recpool(program: str, environment: dict[str, str], *words: str) -> str:
    done = subprocess.run(
        [sys.executable, "-m", program, *words],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    if done.returncode != 0:
        raise RuntimeError(f"recpool {' '.join(words)} failed ({done.returncode}): {done.stdout[-2_000:]}")
    return done.stdout


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def _name(process: psutil.Process) -> str:
    try:
        return process.name()
    except psutil.Error:
        return ""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
