"""A slice of the pool for each model that is served: its share of a device, its gate, and its part of every view.

Each model's threads compute on the device where its slice is, behind the gate, as guaranteed work. Without a pool,
a controller or room, models are served all the same.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Collection, Mapping
from typing import Any

from configs.settings import Settings
from deployments.pool_member import PoolMember
from pool.gate.meters import Meter, ThreadMeter
from pool.policy.latency import BatchTime
from pool.runtime.messages import Claimed
from serving.inference_protocol.models import Model

log = logging.getLogger("recpool.inference")
PREFIX = "model."
LONGEST = 63
"""Characters of a workload's name."""


class ModelSlices:
    """The members of this process, one a model and version."""

    def __init__(self, settings: Settings):
        self._settings = settings
        self._members: dict[str, tuple[Model, PoolMember]] = {}
        self._lock = threading.Lock()

    def follow(self, models: Mapping[str, Model]) -> None:
        """Let those that serve have a slice, and those that do not any more give theirs back."""
        if not self._settings.pool.runtime.enabled:
            return
        with self._lock:
            for key, (model, member) in list(self._members.items()):
                if models.get(key) is not model:
                    del self._members[key]
                    member.leave()
            for key, model in models.items():
                if key not in self._members:
                    self._members[key] = model, self._joined(key, model)

    def stop(self) -> None:
        with self._lock:
            for _, member in self._members.values():
                member.stop()

    def _joined(self, key: str, model: Model) -> PoolMember:
        place = _Place(model)
        member = PoolMember(
            model_settings(self._settings, model),
            place,
            workload_name(model.name),
            version=lambda: model.version,
            part=key,
            enter=place.enter,
        )
        member.start()
        return member


class _Place:
    """A model as a member of the pool sees it; conforms to `deployments.pool_member.Serving`."""

    def __init__(self, model: Model):
        self._model = model
        self._cores: Collection[int] = ()

    def enter(self, claimed: Claimed) -> Meter:
        """Its threads go to the device's cores with their next batch; other models' stay where they are."""
        self._cores = claimed.device.cores
        return ThreadMeter()

    def pass_gate(self, gate: Any) -> None:
        self._model.batcher.pass_gate(gate, self._cores)

    def latencies_ms(self, over_s: float) -> list[float]:
        return self._model.statistics.latencies_ms(over_s)

    @property
    def queue(self) -> int:
        return self._model.batcher.queue

    def batch_times(self) -> tuple[BatchTime, ...]:
        """None: the pool's costs are of the funnel's releases."""
        return ()


def model_settings(settings: Settings, model: Model) -> Settings:
    """The settings by which a member claims, with the share and the SLO of the model."""
    share = model.spec.share_milli or settings.inference.model_share_milli
    gateway = settings.plan.gateway.model_copy(update={"tier": ("cpu",), "share_milli": share, "memory_mib": None})
    runtime = settings.pool.runtime.model_copy(update={"serving_slo_ms": model.spec.slo_ms})
    return settings.model_copy(
        update={
            "plan": settings.plan.model_copy(update={"gateway": gateway}),
            "pool": settings.pool.model_copy(update={"runtime": runtime}),
        }
    )


def workload_name(model: str) -> str:
    """A model's name as the pool's names are: lower case, and of letters, digits, dots, dashes, underscores."""
    return PREFIX + re.sub(r"[^a-z0-9._-]", "-", model.lower())[: LONGEST - len(PREFIX)]
