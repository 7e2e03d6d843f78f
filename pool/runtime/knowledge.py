"""What is known of costs: measured profiles, else the graphs of the release; and what runs, measured into profiles.

Serving replicas send the times of their batches with each claim, and a warm-up those of its replay with its
result. Both ask the whole funnel of a release, so each tells what the other will find on that kind of device.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from configs.errors import ArtifactError, InvalidRequest
from configs.pool_settings import PoolSettings
from pool.device import Device, DeviceKind
from pool.policy.cost_model import Prediction, predict_kinds
from pool.policy.latency import BatchTime, GraphCosts, LatencyProfile, measured_again
from pool.profiles import ProfileKey, ProfileStore
from pool.release_costs import FUNNEL, PARTS, ReleaseCosts
from pool.runtime.messages import Claim, HostStatus
from pool.workload import WorkloadSpec

log = logging.getLogger("recpool.pool")
WRITE_S = 30.0
"""Seconds between two writes of one profile; claims come every few seconds and tell much the same."""
LOOK_S = 10.0
"""Seconds that what was read of a model holds; others may write profiles too."""
MOST_SPECS = 20_000
Name = tuple[str, str | None]


@dataclass(frozen=True)
class Known:
    """What is known of one workload, by kind of device.

    Attributes:
        predictions: what the planner goes by: measured where it was, else by the graph. None of training: how long
            inference takes says nothing of that, so the rule of thumb, which needs ``costs`` alone, decides.
        by_graph: what the graph alone says, beside what was measured.
        profiles: what was measured.
    """

    predictions: Mapping[DeviceKind, Prediction] = field(default_factory=dict)
    by_graph: Mapping[DeviceKind, Prediction] = field(default_factory=dict)
    profiles: Mapping[DeviceKind, LatencyProfile] = field(default_factory=dict)
    costs: GraphCosts | None = None


NOTHING = Known()
Know = Callable[[WorkloadSpec], Known]


@dataclass(frozen=True)
class _Model:
    profiles: Mapping[DeviceKind, LatencyProfile]
    costs: GraphCosts | None


class Knowledge:
    """Costs of workloads; methods may be called by several threads.

    Args:
        profiles: None: nothing is measured.
        releases: counts graphs; None: costs are known of what was measured alone.
        clock: monotonic seconds.
    """

    def __init__(
        self,
        settings: PoolSettings,
        profiles: ProfileStore | None = None,
        releases: ReleaseCosts | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._settings = _with_cores_for_emulated(settings)
        self._profiles, self._releases, self._clock = profiles, releases, clock
        self._lock = threading.RLock()
        self._models: dict[Name, tuple[float, _Model]] = {}
        self._known: dict[str, tuple[WorkloadSpec, _Model, Known]] = {}
        self._written_s: dict[ProfileKey, float] = {}
        self._heard: set[str] = set()

    def of(self, spec: WorkloadSpec) -> Known:
        """What is known now; it costs next to nothing while nothing new was learnt."""
        model = self._model((modelled(spec), spec.version))
        before = self._known.get(spec.name)
        if before is not None and before[1] is model and (before[0] is spec or before[0] == spec):
            return before[2]
        if len(self._known) >= MOST_SPECS:
            self._known.clear()
        known = _known(spec, model, self._settings)
        self._known[spec.name] = (spec, model, known)
        return known

    def hear_claim(self, claim: Claim, device: Device) -> None:
        """What a serving replica measured on its device."""
        if claim.version:
            self._learn(claim.version, device, claim.batches, WRITE_S)

    def hear_results(self, statuses: Iterable[HostStatus], devices: Mapping[str, Device]) -> None:
        """What warm-ups measured, once of each lease.

        Args:
            devices: by id; of those that are not there, nothing is learnt.
        """
        told = set()
        for status in statuses:
            lease = status.lease
            told.add(lease.id)
            if status.spec.kind == "warmup" and status.result and lease.id not in self._heard:
                self._heard.add(lease.id)
                if lease.device in devices:
                    version = str(status.result.get("version", ""))
                    self._learn(version, devices[lease.device], _batches(status.result), 0.0)
        self._heard &= told

    def _model(self, name: Name) -> _Model:
        """As it was read lately; the same object as long as it is the same."""
        with self._lock:
            now_s = self._clock()
            before = self._models.get(name)
            if before is not None and now_s - before[0] < LOOK_S:
                return before[1]
            found = self._look(name)
            if before is not None and before[1] == found:
                found = before[1]
            self._models[name] = (now_s, found)
            return found

    def _look(self, name: Name) -> _Model:
        model, version = name
        costs = self._releases.costs(model, version) if self._releases else None
        if self._profiles is None:
            return _Model({}, costs)
        known = self._releases.version(version) if self._releases else version
        try:
            return _Model(self._profiles.profiles(model, known or ""), costs)
        except (ArtifactError, InvalidRequest) as error:
            log.warning("%s", error.message)
            return _Model({}, costs)

    def _learn(self, version: str, device: Device, batches: tuple[BatchTime, ...], every_s: float) -> None:
        try:
            key = ProfileKey(FUNNEL, device.kind, version)
        except InvalidRequest:  # a version that is no name of a release was not measured by one of ours
            return
        with self._lock:
            now_s = self._clock()
            if self._profiles is None or not batches or now_s - self._written_s.get(key, float("-inf")) < every_s:
                return
            self._written_s[key] = now_s
            self._write(self._profiles, key, batches, device.emulated)
            for name in [each for each in self._models if each[0] == FUNNEL]:
                del self._models[name]

    @staticmethod
    def _write(profiles: ProfileStore, key: ProfileKey, batches: tuple[BatchTime, ...], emulated: bool) -> None:
        try:
            old = profiles.get(key)
        except ArtifactError as error:
            log.warning("%s; what is measured now takes its place", error.message)
            old = None
        profile = measured_again(old, batches, emulated)
        if profile is None or profile == old:
            return
        try:
            profiles.put(key, profile)
        except OSError as error:
            log.warning("%s is not kept: %s", key.file_name, error)


def _with_cores_for_emulated(settings: PoolSettings) -> PoolSettings:
    """Kinds that cores stand in for are predicted as cores: no data sheet of an accelerator is true of them."""
    emulated = {device.kind for device in settings.devices if device.emulated}
    emulated -= {device.kind for device in settings.devices if not device.emulated}
    roofline = settings.roofline.model_copy(update=dict.fromkeys(emulated, settings.roofline.cpu))
    return settings.model_copy(update={"roofline": roofline})


def modelled(spec: WorkloadSpec) -> str:
    """The model whose cost a workload has: that of the whole funnel, for work that asks or trains all of it."""
    if spec.kind in ("warmup", "evaluate") or (spec.kind == "finetune" and spec.model not in PARTS):
        return FUNNEL
    return spec.model


def _known(spec: WorkloadSpec, model: _Model, settings: PoolSettings) -> Known:
    if spec.kind == "finetune":
        return Known(costs=model.costs)
    by_graph = predict_kinds(spec, {}, model.costs, settings)
    predictions = predict_kinds(spec, model.profiles, model.costs, settings)
    return Known(predictions, by_graph, model.profiles, model.costs)


def _batches(result: Mapping[str, Any]) -> tuple[BatchTime, ...]:
    """As `serving.works.warmup` tells them; none where the result has another form."""
    try:
        return tuple(
            BatchTime(int(row["batch_rows"]), float(row["p50_ms"]), float(row["p99_ms"]), int(row["runs"]))
            for row in result["batches"]
        )
    except (KeyError, TypeError, ValueError):
        return ()
