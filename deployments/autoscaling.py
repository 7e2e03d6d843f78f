"""Replica counts that follow demand: an actor hears the replicas' counters, decides, and tells Serve.

Serve's own autoscaling goes by metrics that do not see the calls of HAProxy, averages them over half a minute, and
adds delays to whatever a policy of one's own says. So the application is one with an external scaler: Serve takes the
counts it is told at once, and keeps the last ones when nobody tells any. Nothing in the data path waits for this.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import orjson
import ray
from ray import serve
from ray.serve._private.common import DeploymentID, ReplicaState
from ray.serve._private.constants import SERVE_CONTROLLER_NAME

from configs.errors import RecpoolError
from configs.settings import Settings
from deployments.environment import Folders
from deployments.ingress_counts import IngressCounts
from deployments.pool_client import NAMESPACE, find_controller
from features.files import write_atomically
from pool.policy.autoscale.loads import Load, LoadBook, Outside
from pool.policy.autoscale.predictive import PredictiveAutoscaler
from pool.policy.autoscale.signals import Signals, Target
from pool.policy.forecast.forecaster import Forecaster

log = logging.getLogger("recpool.autoscale")
AUTOSCALER = "autoscaler"
GATEWAY = "gateway"
THREADS = 16
SILENT_TICKS = 5
"""A replica that says nothing for so many intervals is gone."""
SAVE_S = 60.0
"""Seconds of what was learnt that the end of this actor costs at most."""
SERVING = (ReplicaState.RUNNING, ReplicaState.UPDATING, ReplicaState.PENDING_MIGRATION)
COMING = (ReplicaState.STARTING, ReplicaState.RECOVERING)


@dataclass(frozen=True)
class Replicas:
    """Of a deployment, as Serve counts them."""

    running: int
    starting: int


@dataclass(frozen=True)
class ScaleReport:
    """What was decided last for a deployment, and what for.

    Attributes:
        at_s: seconds since 1970.
        arriving_per_s: in the last interval.
    """

    deployment: str
    at_s: float
    replicas: int
    running: int
    starting: int
    arriving_per_s: float
    queued: float
    reasons: tuple[str, ...]


class Counts(Protocol):
    """Where replicas are counted and their number is set."""

    def replicas(self, app: str, deployment: str) -> Replicas | None:
        """None for one that does not run."""
        ...

    def set(self, app: str, deployment: str, replicas: int) -> None: ...


class Scaling:
    """All of the autoscaler but Ray; one thread ticks, others report.

    Args:
        warn: told, with the reason, that more replicas will soon share the devices.
        outside: counts at the ingress; None where it cannot be asked.
        monotonic_s, wall_s: clocks.
    """

    def __init__(
        self,
        settings: Settings,
        counts: Counts,
        warn: Callable[[str], None] = lambda reason: None,
        outside: Callable[[], Outside | None] = lambda: None,
        monotonic_s: Callable[[], float] = time.monotonic,
        wall_s: Callable[[], float] = time.time,
    ):
        self._counts, self._warn, self._outside = counts, warn, outside
        self._monotonic_s, self._wall_s = monotonic_s, wall_s
        self._folder = settings.home / "run" / "autoscale"
        self._lock = threading.Lock()
        self._saved_s = monotonic_s()
        self._reports: dict[str, ScaleReport] = {}
        autoscale = settings.autoscale
        self._books = {name: LoadBook(SILENT_TICKS * autoscale.interval_s) for name in autoscale.deployments}
        self._scalers = {
            name: PredictiveAutoscaler(autoscale, each, settings.forecast, self._restored(name, settings))
            for name, each in autoscale.deployments.items()
        }

    def report(self, load: Load) -> None:
        """Take a replica's counters; of a deployment that is not driven they are of no use."""
        with self._lock:
            if load.deployment in self._books:
                self._books[load.deployment].take(load, self._monotonic_s())

    def reports(self) -> tuple[ScaleReport, ...]:
        return tuple(self._reports.values())

    def tick(self) -> None:
        """Decide for every deployment of which something is known, and have it carried out."""
        for name, scaler in self._scalers.items():
            seen = self._signals(name)
            if seen is not None:
                app, signals = seen
                self._carry_out(app, name, signals, scaler.decide(signals))
        if self._monotonic_s() - self._saved_s >= SAVE_S:
            self._save()

    def _signals(self, name: str) -> tuple[str, Signals] | None:
        app = self._books[name].app
        replicas = self._counts.replicas(app, name) if app is not None else None
        if app is None or replicas is None:
            return None
        outside = self._outside() if name == GATEWAY else None
        with self._lock:
            signals = self._books[name].signals(
                self._wall_s(), self._monotonic_s(), replicas.running, replicas.starting, outside
            )
        return None if signals is None else (app, signals)

    def _carry_out(self, app: str, name: str, seen: Signals, target: Target) -> None:
        there = seen.running + seen.starting
        before = self._reports.get(name)
        self._reports[name] = ScaleReport(
            name,
            seen.at_s,
            target.replicas,
            seen.running,
            seen.starting,
            seen.arrived / seen.interval_s,
            seen.queued,
            target.reasons,
        )
        if target.replicas == there:
            return
        why = "; ".join(target.reasons)
        if before is None or before.replicas != target.replicas:
            log.info("%s: %d replicas instead of %d: %s", name, target.replicas, there, why)
            if target.replicas > there:
                self._warn(f"{name} goes from {there} to {target.replicas} replicas: {why}")
        self._counts.set(app, name, target.replicas)

    def _save(self) -> None:
        self._saved_s = self._monotonic_s()
        self._folder.mkdir(parents=True, exist_ok=True)
        for name, scaler in self._scalers.items():
            write_atomically(self._folder / f"{name}.json", orjson.dumps(scaler.demand.forecaster.plain()))

    def _restored(self, name: str, settings: Settings) -> Forecaster | None:
        """What was learnt before, if by the same settings; a file that cannot be read is as none."""
        try:
            made = Forecaster.restored(orjson.loads((self._folder / f"{name}.json").read_bytes()))
        except FileNotFoundError:
            return None
        except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
            log.warning("what was learnt of %s cannot be read, it is learnt anew: %s", name, error)
            return None
        return made if made.settings == settings.forecast else None


class ServeCounts:
    """Serve on this process's cluster. Its controller takes new counts at once, without delays of its own."""

    def __init__(self) -> None:
        self._controller: Any = None

    def replicas(self, app: str, deployment: str) -> Replicas | None:
        found = serve.status().applications.get(app)
        states = found.deployments[deployment].replica_states if found and deployment in found.deployments else None
        if states is None:
            return None
        running, starting = (sum(states.get(state, 0) for state in kinds) for kinds in (SERVING, COMING))
        return Replicas(running, starting)

    def set(self, app: str, deployment: str, replicas: int) -> None:
        if self._controller is None:
            self._controller = ray.get_actor(SERVE_CONTROLLER_NAME, namespace=NAMESPACE)
        ray.get(self._controller.update_deployment_replicas.remote(DeploymentID(deployment, app), replicas))


class AutoscalerActor:
    """See `Scaling`; `configure` begins anew with other settings."""

    def __init__(self, settings: Settings):
        self._ended = threading.Event()
        self._settings = settings
        self._begin()

    def configure(self, settings: Settings) -> None:
        if settings != self._settings:
            self._ended.set()
            self._settings = settings
            self._begin()

    def report(self, load: Load) -> None:
        self._scaling.report(load)

    def reports(self) -> tuple[ScaleReport, ...]:
        return self._scaling.reports()

    def _begin(self) -> None:
        settings, self._ended = self._settings, threading.Event()
        outside = IngressCounts(Folders(settings.home).haproxy)
        warn = warn_pool if settings.pool.runtime.enabled else lambda reason: None
        self._scaling = Scaling(settings, ServeCounts(), warn, outside)
        arguments = (self._scaling, settings.autoscale.interval_s, self._ended)
        threading.Thread(target=_run, args=arguments, name="autoscale", daemon=True).start()


def start_autoscaler(settings: Settings) -> Any:
    """A handle to the cluster's autoscaler, which is started if there is none; None where nothing is to be driven,
    and then one that an earlier profile started is ended.

    It is detached, so it outlives this process, and Ray starts it again whenever it dies.
    """
    if not ray.is_initialized():
        return None
    if not settings.autoscale.deployments:
        with suppress(ValueError):  # there is none
            ray.kill(ray.get_actor(AUTOSCALER, namespace=NAMESPACE))
        return None
    settings = settings.model_copy(update={"home": Path(settings.home).absolute()})
    remote: Any = ray.remote(AutoscalerActor)
    handle = remote.options(
        name=AUTOSCALER,
        namespace=NAMESPACE,
        lifetime="detached",
        get_if_exists=True,
        num_cpus=0,
        max_restarts=-1,
        max_concurrency=THREADS,
    ).remote(settings)
    ray.get(handle.configure.remote(settings))
    return handle


def warn_pool(reason: str) -> None:
    """Have the pool's interruptible work save what it has: more of the devices will soon be needed.

    Not waited for; without a controller nobody is warned.
    """
    with suppress(RecpoolError):
        find_controller().warn.remote(reason)


def as_document(reports: tuple[ScaleReport, ...]) -> Mapping[str, Any]:
    return {"deployments": [asdict(each) for each in reports]}


def _run(scaling: Scaling, interval_s: float, ended: threading.Event) -> None:
    """The edge of the deciding thread: whatever fails is logged and tried again; replicas stay as they are."""
    said = ""
    while not ended.wait(interval_s):
        try:
            scaling.tick()
            said = ""
        except Exception as error:
            if str(error) != said:
                log.exception("replica counts stay as they are")
            said = str(error)
