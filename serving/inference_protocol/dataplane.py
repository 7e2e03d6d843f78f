"""What both sides of the protocol, REST and gRPC, ask: one set of answers as plain values.

Names of fields are those of the protocol's messages, so an answer is JSON as it stands, and a gRPC message by
`google.protobuf.json_format.ParseDict`.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from importlib.metadata import version as package_version
from typing import Any

import numpy as np

from configs.errors import RecpoolError, Unavailable
from serving.inference_protocol.config import ModelConfig, TensorSpec
from serving.inference_protocol.models import InferCall, Model
from serving.inference_protocol.registry import ModelRegistry
from serving.inference_protocol.statistics import DURATIONS, Duration, ModelStatistics

SERVER = "recpool"
EXTENSIONS = (
    "binary_tensor_data",
    "classification",
    "model_configuration",
    "model_repository",
    "parameters",
    "schedule_policy",
    "statistics",
)
"""Of Triton's extensions, those that are carried out."""
TRIES = 3
"""Of a request whose model is replaced by another just then."""


class Unsupported(RecpoolError):
    """The protocol knows it, and this server does not do it."""

    status = 501


class DataPlane:
    """Answers by plain values.

    Args:
        ready: why the server is not ready yet, or None.
    """

    def __init__(self, registry: ModelRegistry, why_not_ready: Callable[[], str | None] = lambda: None):
        self.registry, self._why_not_ready = registry, why_not_ready

    @property
    def is_ready(self) -> bool:
        return self._why_not_ready() is None

    def server_metadata(self) -> dict[str, Any]:
        return {"name": SERVER, "version": package_version(SERVER), "extensions": list(EXTENSIONS)}

    def is_model_ready(self, name: str, version: str = "") -> bool:
        """Raises NotFound when the name is unknown."""
        return self.registry.model(name, version) is not None

    def model_metadata(self, name: str, version: str = "") -> dict[str, Any]:
        """Raises NotFound, as the others that take a name."""
        spec = self.registry.model(name, version).spec
        return {
            "name": name,
            "versions": [version] if version else list(self.registry.versions(name)),
            "platform": spec.platform,
            "inputs": [_tensor(each) for each in spec.inputs],
            "outputs": [_tensor(each) for each in spec.outputs],
        }

    def model_config(self, name: str, version: str = "") -> ModelConfig:
        return self.registry.model(name, version).config

    def statistics(self, name: str = "", version: str = "") -> dict[str, Any]:
        """Of one model, of all versions of it, or of everything."""
        if name:
            self.registry.model(name, version)
        chosen = [m for m in self.registry.models() if name in ("", m.name) and version in ("", m.version)]
        return {"model_stats": [_statistics(model) for model in chosen]}

    def index(self, only_ready: bool = False) -> list[dict[str, str]]:
        found = self.registry.index(only_ready)
        return [{"name": e.name, "version": e.version, "state": e.state, "reason": e.reason} for e in found]

    async def infer(self, name: str, version: str, call: InferCall) -> tuple[Model, dict[str, np.ndarray]]:
        """The model that answered, and the outputs that were asked for.

        Raises:
            NotFound: no such model. InvalidRequest: the request does not fit it.
            Overloaded, Unavailable: too many wait, or it waited too long.
            RecpoolError: the model failed.
        """
        for attempt in range(TRIES):
            model = self.registry.model(name, version)
            try:
                answer = model.submit(call)
            except Unavailable:  # it is being replaced; its successor serves already
                if attempt + 1 == TRIES or self.registry.model(name, version) is model:
                    raise
                continue
            outputs = await asyncio.wrap_future(answer)
            return model, model.answered(call, outputs)
        raise AssertionError("every attempt returns or raises")

    async def load(self, name: str, parameters: Mapping[str, Any]) -> None:
        """Load or reload; raises `LoadFailed` with the reason when that fails."""
        if parameters:
            raise Unsupported(
                f"failed to load '{name}', parameters {', '.join(map(repr, sorted(parameters)))}: models and their "
                "configurations come from the model repository only"
            )
        await asyncio.get_running_loop().run_in_executor(None, self.registry.load, name)

    async def unload(self, name: str) -> None:
        """Let go of a model once it has answered what waits."""
        await asyncio.get_running_loop().run_in_executor(None, self.registry.unload, name)


def _tensor(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": list(spec.shape)}


def _statistics(model: Model) -> dict[str, Any]:
    known: ModelStatistics = model.statistics
    return {
        "name": model.name,
        "version": model.version,
        "last_inference": known.last_inference_ms,
        "inference_count": known.inferences,
        "execution_count": known.executions,
        "inference_stats": {name: _duration(known.durations[name]) for name in DURATIONS}
        | {name: _duration(Duration()) for name in ("cache_hit", "cache_miss")},
        "batch_stats": [
            {"batch_size": rows, **{name: _duration(getattr(batch, name)) for name in DURATIONS[3:]}}
            for rows, batch in sorted(known.batches.items())
        ],
    }


def _duration(duration: Duration) -> dict[str, int]:
    return {"count": duration.count, "ns": duration.ns}
