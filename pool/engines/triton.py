"""A Triton server as an engine, with a local engine behind it for when it does not answer in time.

A call is given `TritonSettings.deadline_ms`. When the server refuses, fails, is late or is gone, the local engine
computes, so whoever calls gets an answer in any case. After some failures in a row, or a broken connection, the
server is asked no more until a thread has seen that it is ready again; no call is spent on finding that out.

The server must have the very version that is asked for: of a release's models, the release's number. One that has
another is as good as none.
"""

from __future__ import annotations

import ipaddress
import logging
import threading
import time
import weakref
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from tritonclient import grpc as triton
from tritonclient.utils import InferenceServerException

from configs.triton_settings import TritonSettings
from pool.engines.engine import Engine
from pool.engines.triton_memory import Region, Regions, Sizes, infer_inputs, shape_of, sizes_of

log = logging.getLogger("recpool.triton")
GONE = ("StatusCode.UNAVAILABLE", "StatusCode.CANCELLED")
"""The connection is broken, or the server is going down: there is no use in a second try."""
MOST_FORMS = 4_096
"""Shapes of inputs whose outputs' sizes are remembered."""
READY_S = 1.0
"""Longest wait for the server to say whether it is ready."""
CHANNEL = [
    ("grpc.max_send_message_length", -1),
    ("grpc.max_receive_message_length", -1),
    # A server that comes back is to be found by the next look, not after gRPC's own growing pauses.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_retries", 0),
]


@dataclass
class Calls:
    """How many calls of a model the server answered, and how many the local engine did instead, by reason."""

    remote: int = 0
    local: dict[str, int] = field(default_factory=dict)

    def count_local(self, reason: str) -> None:
        self.local[reason] = self.local.get(reason, 0) + 1


class TritonServer:
    """The connection of this process to one server, shared by its engines, and the thread that looks after it."""

    def __init__(self, settings: TritonSettings, client: triton.InferenceServerClient | None = None):
        assert settings.url is not None
        self.settings = settings
        self.client = client or triton.InferenceServerClient(settings.url, channel_args=CHANNEL)
        wanted = settings.shared_memory
        uses_memory = _is_here(settings.url) if wanted is None else wanted
        self.regions = Regions(self.client, settings.shared_memory_mib << 20) if uses_memory else None
        self._engines: weakref.WeakSet[TritonEngine] = weakref.WeakSet()
        self._wakes = threading.Event()
        threading.Thread(target=self._watch, name="triton-watch", daemon=True).start()

    def engine(self, model: str, version: str, local: Engine) -> TritonEngine:
        """The engine of a version of a model; it is asked as soon as the server was seen to have it."""
        engine = TritonEngine(self, model, version, local)
        self._engines.add(engine)
        self.look()
        return engine

    def look(self) -> None:
        """Have the thread see whether those that are down are ready by now."""
        self._wakes.set()

    def lost(self) -> None:
        """The server is gone, for all of its models."""
        for engine in list(self._engines):
            engine.is_up = False
        self.look()

    def _tend(self, is_new: bool = False) -> None:
        if self.regions is not None and (is_new or any(each.is_up for each in list(self._engines))):
            self.regions.tend(is_new)

    def _watch(self) -> None:
        while True:
            self._wakes.wait()
            self._wakes.clear()
            self._tend()
            while any(not engine.is_up for engine in list(self._engines)):
                self._try_all()
                self._wakes.wait(self.settings.retry_ms / 1000)
                self._wakes.clear()

    def _try_all(self) -> None:
        for engine in [each for each in list(self._engines) if not each.is_up]:
            try:
                ready = self.client.is_model_ready(engine.model, engine.version, client_timeout=READY_S)
            except InferenceServerException:  # it does not know the model, or there is no server
                continue
            if ready:
                self._found(engine)

    def _found(self, engine: TritonEngine) -> None:
        self._tend(is_new=not any(each.is_up for each in list(self._engines)))
        log.info("%s computes %s, version %s", self.settings.url, engine.model, engine.version)
        engine.restored()


class TritonEngine:
    """One model on the server; conforms to `Engine`. Made by `TritonServer.engine`."""

    def __init__(self, server: TritonServer, model: str, version: str, local: Engine):
        self.model, self.version, self.is_up = model, version, False
        self.calls = Calls()
        self._server, self._local = server, local
        self._faults = 0
        self._sizes: dict[tuple[tuple[str, tuple[int, ...]], ...], Sizes] = {}

    def run(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Outputs by name. Raises what the local engine raises, and nothing besides."""
        if not self.is_up:
            self.calls.count_local("down")
            return self._local.run(inputs)
        try:
            outputs = self._asked({name: inputs[name] for name in self._names(inputs)})
        except Exception as error:  # whatever the client or its libraries raise; the local engine has the answer
            self._failed(error)
            return self._local.run(inputs)
        self._faults = 0
        self.calls.remote += 1
        return outputs

    def restored(self) -> None:
        """The server was seen to have it."""
        self._faults, self.is_up = 0, True

    def _names(self, inputs: Mapping[str, np.ndarray]) -> list[str]:
        """Inputs that the model declares, where the local engine knows; callers may give more."""
        declared = getattr(self._local, "input_types", None)
        return [name for name in inputs if declared is None or name in declared]

    def _failed(self, error: Exception) -> None:
        status = str(error.status()) if isinstance(error, InferenceServerException) else type(error).__name__
        self.calls.count_local(status.removeprefix("StatusCode."))
        self._faults += 1
        if status in GONE:
            log.warning("%s is gone: %s; computing locally until it is back", self._server.settings.url, error)
            self._server.lost()
        elif self._faults >= self._server.settings.faults:
            log.warning("%s fails for %s: %s; computing locally", self._server.settings.url, self.model, error)
            self.is_up = False
            self._server.look()

    def _asked(self, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        regions = self._server.regions
        region = regions.borrow() if regions is not None else None
        if regions is None or region is None:
            return self._infer(infer_inputs(inputs), time.monotonic() + self._deadline_s)
        try:
            outputs = self._through(region, inputs)
        except BaseException:
            regions.spoil(region)
            self._server.look()
            raise
        regions.free(region)
        return outputs

    def _through(self, region: Region, inputs: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """A call with its tensors in a region; outputs, too, once their sizes are known from a call like it."""
        until_s = time.monotonic() + self._deadline_s
        put = region.put(inputs)
        if put is None:
            return self._infer(infer_inputs(inputs), until_s)
        given, end = put
        form = tuple((name, array.shape) for name, array in inputs.items())
        sizes = self._sizes.get(form)
        placed = None if sizes is None else region.places(sizes, end)
        if sizes is None or placed is None:
            outputs = self._infer(given, until_s)
            if (found := sizes_of(outputs)) is not None and len(self._sizes) < MOST_FORMS:
                self._sizes[form] = found
            return outputs
        wanted, places = placed
        result = self._call(given, until_s, wanted)
        return {
            name: region.take(dtype, shape_of(result, name) or [], places[name]) for name, (_, dtype) in sizes.items()
        }

    def _infer(self, inputs: list[triton.InferInput], until_s: float) -> dict[str, np.ndarray]:
        """Outputs that come by gRPC."""
        result = self._call(inputs, until_s)
        names = [output.name for output in result.get_response().outputs]  # type: ignore[union-attr]
        found = {name: result.as_numpy(name) for name in names}
        return {name: array for name, array in found.items() if array is not None}

    def _call(
        self, inputs: list[triton.InferInput], until_s: float, outputs: list[triton.InferRequestedOutput] | None = None
    ) -> triton.InferResult:
        left_s = max(1e-3, until_s - time.monotonic())
        return self._server.client.infer(  # type: ignore[return-value]
            self.model, inputs, self.version, outputs, client_timeout=left_s
        )

    @property
    def _deadline_s(self) -> float:
        return self._server.settings.deadline_ms / 1000


def _is_here(url: str) -> bool:
    host = url.rpartition(":")[0].strip("[]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
