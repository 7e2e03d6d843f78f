"""The real application, whose replicas can be told to stand still or to raise: for `benchmarks.failover` alone.

``python -m benchmarks.failover_app up`` is ``recpool up`` that serves this application.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time
from pathlib import Path
from typing import Any

from ray import serve

from configs.settings import Settings, load_settings
from deployments import cli, rollout
from deployments.app import AppArguments, cluster_resources, compose
from deployments.gateway import Gateway
from deployments.stages import Stage

STALL, RAISE = "stall", "raise"


def order(home: Path, pid: int, what: str, seconds: float) -> None:
    """Tell a replica to stall its event loop, or to raise in every call, for so long; it obeys at once."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.sendto(f"{what} {seconds}".encode(), str(_address(home, pid)))


def _address(home: Path, pid: int) -> Path:
    return home / "run" / f"{pid}.s"


class _Orders:
    """Listens on a thread of its own, so that a replica obeys in the middle of whatever it does."""

    def __init__(self, home: Path):
        self._loop = asyncio.get_running_loop()
        self._raise_until_s = 0.0
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        address = _address(home, os.getpid())
        address.unlink(missing_ok=True)
        self._socket.bind(str(address))
        threading.Thread(target=self._obey, daemon=True).start()

    def _obey(self) -> None:
        while True:
            what, seconds = self._socket.recv(64).decode().split()
            if what == STALL:
                self._loop.call_soon_threadsafe(time.sleep, float(seconds))
            else:
                self._raise_until_s = time.monotonic() + float(seconds)

    def check(self) -> None:
        """Raise while told to."""
        if time.monotonic() < self._raise_until_s:
            raise RuntimeError("the engine broke, as it was told to")


class BreakableStage(Stage):
    def __init__(self, stage: str, tier: str, settings: Settings, champion: str | None = None):
        super().__init__(stage, tier, settings, champion)
        self._orders = _Orders(settings.home)

    async def run(self, query: Any, timeout_s: float) -> Any:
        self._orders.check()
        return await super().run(query, timeout_s)


class BreakableGateway(Gateway):
    async def __init__(self, settings: Settings, *args: Any, **kwargs: Any):  # as Serve's wrapper has it
        await super().__init__(settings, *args, **kwargs)  # pyright: ignore[reportGeneralTypeIssues]
        self._orders = _Orders(settings.home)


def build_app(arguments: dict[str, Any]) -> serve.Application:
    """As `deployments.app.build_app`."""
    checked = AppArguments.model_validate(arguments)
    settings = load_settings(checked.profile, checked.overrides)
    return compose(settings, cluster_resources(), stage=BreakableStage, gateway=BreakableGateway)


if __name__ == "__main__":
    rollout.IMPORT_PATH = "benchmarks.failover_app:build_app"
    cli.main()
