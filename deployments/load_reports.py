"""A replica tells the autoscaler what it counts, once an interval, on a thread of its own.

Serve's own metrics do not see the calls that HAProxy gives to a gateway, so its autoscaling cannot go by them.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import ray
from ray import serve

from configs.autoscale_settings import AutoscaleSettings
from deployments.autoscaling import AUTOSCALER, NAMESPACE
from pool.policy.autoscale.loads import Load

log = logging.getLogger("recpool.autoscale")
LOOK_UP_S = 30.0
"""Seconds after which the autoscaler is looked up again; it may have been started anew."""


class Counted(Protocol):
    """What a reporter asks its replica; thread-safe."""

    def counts(self) -> tuple[float, float, float]:
        """Requests that arrived and those late or refused, since the start; and those that wait now."""
        ...


class LoadReporter:
    """Reports for one replica, where its deployment is driven.

    Args:
        cores: that it computes on at most.
        tell: absent: the autoscaler of this cluster.
    """

    def __init__(
        self,
        settings: AutoscaleSettings,
        deployment: str,
        counted: Counted,
        cores: int = 1,
        tell: Callable[[Load], None] | None = None,
    ):
        self._is_driven = deployment in settings.deployments
        self._interval_s = settings.interval_s
        self._deployment, self._counted, self._cores = deployment, counted, cores
        self._tell = tell or _Teller()
        self._ended = threading.Event()
        self._started = False

    def start(self) -> None:
        """Begin, in a replica that is ready to serve; again does nothing."""
        if not self._is_driven or self._started:
            return
        self._started = True
        context = serve.get_replica_context()
        names = (context.app_name, self._deployment, context.replica_id.unique_id)
        threading.Thread(target=self._run, args=names, name="load-reports", daemon=True).start()

    def stop(self) -> None:
        self._ended.set()

    def load(self, app: str, deployment: str, replica: str) -> Load:
        arrived, late, queued = self._counted.counts()
        return Load(app, deployment, replica, arrived, queued, late, time.process_time(), self._cores)

    def _run(self, *names: str) -> None:
        """The edge of the thread: whatever fails is tried again, as replicas serve without an autoscaler too."""
        said = ""
        while True:
            try:
                self._tell(self.load(*names))
                said = ""
            except Exception as error:
                if str(error) != said:
                    log.warning("the load of %s is not told: %s", self._deployment, error)
                said = str(error)
            if self._ended.wait(self._interval_s):
                return


class ServiceLoad:
    """Counts of a gateway, from what its service counts.

    Args:
        late_ms: latency from which a request counts as late.
    """

    def __init__(self, service: Any, late_ms: float):
        self._service, self._late_ms = service, late_ms
        self._late, self._looked_s = 0.0, time.monotonic()

    def counts(self) -> tuple[float, float, float]:
        now_s = time.monotonic()
        took_ms = self._service.latencies_ms(now_s - self._looked_s)
        self._late += sum(each > self._late_ms for each in took_ms)
        self._looked_s = now_s
        status = self._service.status()
        refused = float(status["refused"])
        return status["requests"] + status["errors"] + refused, self._late + refused, float(self._service.queue)


class CallLoad:
    """Counts of a stage: the rows of its calls are requests.

    Args:
        late_ms: time of a call from which its rows count as late.
    """

    def __init__(self, late_ms: float):
        self._late_ms = late_ms
        self._lock = threading.Lock()
        self._arrived = self._late = 0.0
        self._under_way: dict[object, int] = {}

    @contextmanager
    def call(self, rows: int) -> Iterator[None]:
        """Around a call of so many rows; one that raises is late."""
        key, began_s, in_time = object(), time.monotonic(), False
        with self._lock:
            self._arrived += rows
            self._under_way[key] = rows
        try:
            yield
            in_time = (time.monotonic() - began_s) * 1000 <= self._late_ms
        finally:
            with self._lock:
                del self._under_way[key]
                self._late += 0 if in_time else rows

    def counts(self) -> tuple[float, float, float]:
        with self._lock:
            rows = list(self._under_way.values())
            return self._arrived, self._late, float(sum(rows[1:]))  # the first is being worked on


class _Teller:
    """Sends to the autoscaler and waits for nothing."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._found_s = float("-inf")

    def __call__(self, load: Load) -> None:
        now_s = time.monotonic()
        if self._handle is None or now_s - self._found_s > LOOK_UP_S:
            self._handle, self._found_s = ray.get_actor(AUTOSCALER, namespace=NAMESPACE), now_s
        self._handle.report.remote(load)
