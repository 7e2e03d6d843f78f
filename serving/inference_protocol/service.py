"""Models as a service, without Ray: the registry that follows its sources, and both sides of the protocol."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import grpc.aio

from configs.settings import Settings
from pool.repository import open_releases
from serving.inference_protocol.config import ModelConfig
from serving.inference_protocol.dataplane import DataPlane
from serving.inference_protocol.models import Model
from serving.inference_protocol.registry import ModelRegistry
from serving.inference_protocol.rest import RestApp
from serving.inference_protocol.rpc import start_server
from serving.inference_protocol.sources import FolderSource, ReleaseSource

log = logging.getLogger("recpool.inference")
BOARD = "run/inference/unloaded.json"
"""Below the home: what was unloaded by request."""
BIND_AGAIN_S = 0.2
"""A predecessor that is being replaced gives its port away when it ends."""
GRACE_S = 5.0
"""For gRPC calls under way when the server ends."""


class InferenceService:
    """Everything a replica does.

    Args:
        changed: told the models that serve, by name and version, whenever they are others.
        check_change: see `serving.inference_protocol.rest.RestApp`.
    """

    def __init__(
        self,
        settings: Settings,
        changed: Callable[[Mapping[str, Model]], None] = lambda models: None,
        check_change: Callable[[dict[bytes, bytes]], None] = lambda headers: None,
    ):
        self._settings = settings.inference
        sources = (ReleaseSource(open_releases(settings)), FolderSource(settings.models_folder))
        self.registry = ModelRegistry(sources, self._load, settings.home / BOARD, changed)
        self.plane = DataPlane(self.registry, lambda: self._why_not_ready)
        self.rest = RestApp(self.plane, self._settings.max_body_bytes, check_change)
        port = self._settings.grpc_port or settings.serving.port + 1
        self.grpc_address = f"{self._settings.grpc_host}:{port}"
        self._why_not_ready: str | None = "models are being loaded"
        self._ended = threading.Event()
        self._server: grpc.aio.Server | None = None

    def start(self) -> None:
        """Load what is there, and follow the sources from then on, on a thread of its own."""
        threading.Thread(target=self._follow, name="model-repository", daemon=True).start()

    async def listen(self) -> None:
        """Start the gRPC side; where another process has the port, as soon as that gives it away."""
        shares, told = self._settings.replicas > 1, False
        while not self._ended.is_set():
            try:
                self._server = await start_server(self.plane, self.grpc_address, self._settings.max_body_bytes, shares)
                log.info("gRPC at %s", self.grpc_address)
                return
            except RuntimeError as error:
                if not told:
                    log.warning("no gRPC yet: %s; trying again until the port is free", error)
                told = True
            await asyncio.sleep(BIND_AGAIN_S)

    async def close(self) -> None:
        """Answer what waits, and end."""
        self._ended.set()
        if self._server is not None:
            await self._server.stop(GRACE_S)
        await asyncio.get_running_loop().run_in_executor(None, self.registry.close)

    def _load(self, config: ModelConfig, version: str, file: Path) -> Model:
        settings = self._settings
        return Model(
            config,
            version,
            file,
            rows=settings.default_batch_rows,
            threads=settings.threads,
            max_queued=settings.max_queued,
            max_elements=settings.max_elements,
        )

    def _follow(self) -> None:
        while not self._ended.is_set():
            try:
                self.registry.poll()
            except Exception:  # the edge of the thread: a folder that cannot be read, for a while
                log.exception("the model repository was not read")
            self._why_not_ready = None
            self._ended.wait(self._settings.poll_s)
