"""One Ray cluster on this machine, owned by a home folder: start it, look at it, end it.

``<home>/run/cluster.json`` records what was started. A record without its processes (after a crash or
a reboot) is noticed and cleared.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, field
from pathlib import Path

import psutil

from configs.errors import Conflict, Unavailable
from configs.settings import Settings
from deployments import processes
from deployments.environment import NODE_ADDRESS, Folders, Ports, cluster_environment, is_free, write_files
from deployments.gates import remove_gates
from deployments.machine import device_resources, machine_resources
from features.files import write_atomically
from pool.runtime.inventory import RESOURCE

START_TIMEOUT_S = 180
OBJECT_STORE_BYTES = 128 * 2**20
"""Models are memory-mapped and batches are small; Ray's default of 30% of memory is for data frames."""


@dataclass(frozen=True)
class ClusterRecord:
    """What ``start`` started.

    Attributes:
        session: the session id all its processes share.
        started_at_s: seconds since 1970, taken before the first process started.
        settings: digest of the settings tree it was started with; another tree needs a restart.
        resources: what Ray was told to hand out, by its names; empty in a record of an earlier version.
    """

    session: int
    started_at_s: float
    boot: str
    address: str
    dashboard: str
    http: str
    settings: str
    resources: dict[str, float] = field(default_factory=dict)


class Cluster:
    """The cluster of one home folder."""

    def __init__(self, home: Path):
        self.folders = Folders(home.absolute())

    @contextmanager
    def lock(self, command: str) -> Iterator[None]:
        """Let one command at a time start or end the cluster; raises Conflict that names the one that is at it."""
        self.folders.run.mkdir(parents=True, exist_ok=True)
        with (self.folders.run / "lock").open("a+", encoding="utf-8") as stream:
            try:
                fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                stream.seek(0)
                other = stream.read(200).strip() or "another `recpool up` or `down`"
                raise Conflict(f"{other} is at work in {self.folders.run}; ask again when it has ended") from None
            stream.truncate(0)
            stream.write(f"`recpool {command}` (process {os.getpid()})")
            stream.flush()
            yield

    def record(self) -> ClusterRecord | None:
        """What was started, or None when nothing was or the record is unreadable."""
        try:
            return ClusterRecord(**json.loads(self.folders.record.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def members(self) -> list[psutil.Process]:
        """Every live process of this cluster."""
        found = {p.pid: p for p in processes.daemons_using(self.folders.sockets)}
        record = self.record()
        if record is not None and record.boot == processes.boot_id():
            found.update((p.pid, p) for p in processes.session_members(record.session, record.started_at_s))
        return list(found.values())

    def is_alive(self) -> bool:
        """Whether the record's raylet runs; replicas may still be missing."""
        return self.record() is not None and any(p.name() == "raylet" for p in self.members())

    def holds(self, port: int) -> bool:
        """Whether it is a process of this cluster that listens on a port."""
        return any(port in processes.listening_ports(member) for member in self.members())

    def token(self) -> str:
        return self.folders.token.read_text(encoding="utf-8").strip()

    def start(self, settings: Settings) -> ClusterRecord:
        """Start Ray; once more, on other ports, when somebody took one of them between the choice and the start.

        Raises:
            Unavailable: it does not come up; holds the end of Ray's output. Conflict: as `write_files`.
            ConfigError: as `device_resources`.
        """
        ports = Ports.choose()
        try:
            return self._start(settings, ports)
        except Unavailable:
            if all(is_free(port) or self.holds(port) for port in astuple(ports)):
                raise
            self.stop()
        return self._start(settings, Ports.choose())

    def _start(self, settings: Settings, ports: Ports) -> ClusterRecord:
        resources = {**machine_resources(), **device_resources(settings)}
        write_files(settings, self.folders, ports)
        environment = {**os.environ, **cluster_environment(settings, self.folders, ports)}
        environment.pop("RAY_ADDRESS")  # `ray start --head` refuses to start beside a named cluster
        started_at_s = time.time()
        with self.folders.log.open("wb") as log:
            process = subprocess.Popen(
                _start_command(self.folders, ports, resources),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            record = ClusterRecord(
                session=process.pid,
                started_at_s=started_at_s,
                boot=processes.boot_id(),
                address=f"{NODE_ADDRESS}:{ports.gcs}",
                dashboard=f"http://127.0.0.1:{ports.dashboard}",
                http=http_address(settings),
                settings=settings_digest(settings),
                resources=resources,
            )
            # Before waiting, so that an interrupted start can be ended by `recpool down`.
            write_atomically(self.folders.record, json.dumps(asdict(record)).encode())
            self._await_start(process)
        return record

    def _await_start(self, process: subprocess.Popen[bytes]) -> None:
        try:
            code = process.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            code = None
        if code != 0:
            said = self.folders.log.read_text(encoding="utf-8", errors="replace")[-2_000:]
            raise Unavailable(f"Ray did not start (exit code {code}); the end of {self.folders.log}:\n{said}")

    def stop(self) -> int:
        """End every process of the cluster and forget it; returns how many there were.

        Raises Unavailable naming those that survived SIGKILL.
        """
        members = self.members()
        left = processes.end(members)
        # HAProxy or a worker may have been started while the others were being ended.
        left = processes.end(self.members()) or left
        if left:
            raise Unavailable(f"still running after SIGKILL: {[p.pid for p in left]}")
        self.folders.record.unlink(missing_ok=True)
        remove_gates(self.folders.home)
        return len(members)


def settings_digest(settings: Settings) -> str:
    return hashlib.sha256(settings.model_dump_json().encode()).hexdigest()


def http_address(settings: Settings) -> str:
    host = settings.serving.host
    return f"http://{'127.0.0.1' if host in ('0.0.0.0', '::') else host}:{settings.serving.port}"


def _start_command(folders: Folders, ports: Ports, resources: Mapping[str, float]) -> list[str]:
    return [
        *(sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--disable-usage-stats"),
        f"--node-ip-address={NODE_ADDRESS}",
        f"--port={ports.gcs}",
        f"--num-cpus={resources['CPU']:g}",
        f"--num-gpus={resources['GPU']:g}",
        f"--resources={json.dumps({name: amount for name, amount in resources.items() if name.startswith(RESOURCE)})}",
        f"--object-store-memory={OBJECT_STORE_BYTES}",
        f"--temp-dir={folders.ray}",
        "--include-dashboard=true",
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={ports.dashboard}",
        f"--dashboard-agent-listen-port={ports.agent}",
        f"--ray-client-server-port={ports.client}",
    ]
