"""What Ray and Serve are told by environment variables and files, for a cluster on this machine."""

from __future__ import annotations

import hashlib
import os
import secrets
import shlex
import shutil
import socket
import stat
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from configs.errors import Conflict
from configs.settings import Settings
from deployments import express, first_steps
from deployments.haproxy import haproxy_environment, haproxy_rules, write_launcher

LONGEST_SOCKET_FOLDER = 32
"""A socket's path may have 107 bytes. Ray puts 72 behind this folder, and HAProxy 75: /hap/, the node's
56-digit id, /s and the ending of a socket that is being replaced."""
NODE_ADDRESS = "127.0.0.2" if sys.platform == "linux" else "127.0.0.1"
"""Ray replaces 127.0.0.1 by the machine's outside address; another loopback address it keeps."""


@dataclass(frozen=True)
class Ports:
    """Ports of the parts that no caller names; free ones, so that two clusters fit on one machine."""

    gcs: int
    dashboard: int
    agent: int
    client: int
    stats: int
    metrics: int
    fallback_http: int
    fallback_grpc: int

    @classmethod
    def choose(cls, dashboard: int = 8265) -> Ports:
        """Free ports; the dashboard keeps Ray's usual one when nobody holds it."""
        free = _free_ports(8)
        return cls(free[0], dashboard if is_free(dashboard) else free[1], *free[2:])


@dataclass(frozen=True)
class Folders:
    """Where a home keeps what a running cluster needs."""

    home: Path

    @property
    def run(self) -> Path:
        return self.home / "run"

    @property
    def record(self) -> Path:
        return self.run / "cluster.json"

    @property
    def token(self) -> Path:
        return self.run / "token"

    @property
    def shell(self) -> Path:
        return self.run / "env.sh"

    @property
    def log(self) -> Path:
        return self.run / "ray-start.log"

    @property
    def sockets(self) -> Path:
        """``run``, or a folder for temporary files when the home's path is too long for sockets."""
        if len(str(self.run)) <= LONGEST_SOCKET_FOLDER:
            return self.run
        name = hashlib.sha256(str(self.home).encode()).hexdigest()[:12]
        return Path(tempfile.gettempdir()) / f"recpool-{name}"

    @property
    def ray(self) -> Path:
        return self.sockets / "ray"

    @property
    def haproxy(self) -> Path:
        return self.sockets / "hap"


def cluster_environment(settings: Settings, folders: Folders, ports: Ports) -> dict[str, str]:
    """Variables that every process of the cluster starts with."""
    return {
        **client_environment(folders, ports),
        # A job's command runs in this environment: its `python` is to be the service's.
        "PATH": os.pathsep.join((_tools(), os.environ.get("PATH", os.defpath))),
        "RAY_worker_niceness": str(first_steps.nice()),
        "RAY_SERVE_CONTROLLER_CALLBACK_IMPORT_PATH": first_steps.IMPORT_PATH,
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": express.IMPORT_PATH,
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(ports.fallback_http),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(ports.fallback_grpc),
        # HAProxy retries on another replica, so a replica that leaves need not linger for the default 30 s.
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "5",
        **haproxy_environment(settings.ingress, folders.haproxy, ports.stats, ports.metrics),
        # On a busy machine it takes longer than the default 5 s to start, and starting over takes longer still.
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "30",
        # HAProxy that died is replaced after three misses.
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
    }


def client_environment(folders: Folders, ports: Ports) -> dict[str, str]:
    """Variables that a shell needs for ``serve deploy``, ``ray job submit`` and the like."""
    return {
        "RECPOOL_HOME": str(folders.home),
        "RAY_ADDRESS": f"{NODE_ADDRESS}:{ports.gcs}",
        "RAY_DASHBOARD_ADDRESS": f"http://127.0.0.1:{ports.dashboard}",
        "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{ports.dashboard}",
        # Ray's own ports accept pickles and listen on every interface whatever the node's address is.
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(folders.token),
    }


def write_files(settings: Settings, folders: Folders, ports: Ports) -> None:
    """Clear what a run before this one left, and write the token, the shell snippet and the HAProxy launcher.

    Raises Conflict when somebody else could have written to the folder of sockets, or still can.
    """
    folders.run.mkdir(parents=True, exist_ok=True)
    if folders.sockets != folders.run:
        _claim(folders.sockets)
    for old in (folders.ray, folders.haproxy):  # logs of the run before; they would pile up
        shutil.rmtree(old, ignore_errors=True)
    folders.haproxy.mkdir(exist_ok=True)
    if not folders.token.is_file():
        descriptor = os.open(folders.token, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with os.fdopen(descriptor, "w") as stream:
            stream.write(secrets.token_hex(32))
    lines = [f"export {k}={shlex.quote(v)}" for k, v in client_environment(folders, ports).items()]
    lines.append(f'export PATH={shlex.quote(_tools())}:"$PATH"')
    folders.shell.write_text("\n".join(lines) + "\n", encoding="utf-8")
    shadows = settings.plan.gateway.shadows > 0
    write_launcher(folders.haproxy, haproxy_rules(settings.ingress, ports.stats, ports.metrics, shadows))


def _tools() -> str:
    """Folder of this Python and of the commands installed beside it."""
    return str(Path(sys.executable).parent)


def _claim(folder: Path) -> None:
    """Have a folder that is ours alone, at a place where every user of the machine may make one of that name."""
    folder.mkdir(mode=0o700, exist_ok=True)
    found = folder.lstat()  # of a link itself, which leads wherever its maker likes
    others_write = stat.S_IMODE(found.st_mode) & (stat.S_IWGRP | stat.S_IWOTH)
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or others_write:
        raise Conflict(
            f"{folder} is not a folder of this user alone; remove it, or choose a home whose path is at most "
            f"{LONGEST_SOCKET_FOLDER - len('/run')} characters long: RECPOOL_HOME=/srv/recpool"
        )


def cores() -> int:
    """Cores this process may use, which a container may have narrowed."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _free_ports(count: int) -> list[int]:
    """Ports nobody holds now; all are held until all are chosen, so none comes twice."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could listen on this port now."""
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True
