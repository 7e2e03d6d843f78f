"""``recpool up`` and ``recpool down``: from a bare home to a service that answers, and back."""

from __future__ import annotations

import shlex
import signal
import threading
from dataclasses import asdict, dataclass
from typing import Any

import orjson

from configs.errors import Conflict, Unavailable
from configs.settings import Settings
from deployments.cluster import Cluster, ClusterRecord, settings_digest
from deployments.console import Report
from deployments.environment import is_free
from deployments.machine import advice, device_resources, machine_resources
from deployments.offline import ensure_dataset, ensure_release, ensure_store
from deployments.plain_http import request
from deployments.plan import Plan, make_plan
from deployments.rollout import await_ready, deploy, serve_config, why_not_ready
from features.datasets import Dataset
from features.schema import USER_ID
from pool.repository import open_releases

READY_TIMEOUT_S = 240.0
WATCH_PERIOD_S = 2.0


@dataclass(frozen=True)
class UpReport:
    """What ``up`` tells: where the service is, how to call it, and what it recommends to one user."""

    address: str
    dashboard: str
    release: str
    environment: str
    user_id: str
    titles: list[str]
    curl: str
    advice: list[str]

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    def lines(self) -> list[str]:
        return [
            f"Recpool serves release {self.release} at {self.address}",
            f"  documentation  {self.address}/docs",
            f"  Ray dashboard  {self.dashboard}  (its token is in the file that RAY_AUTH_TOKEN_PATH names)",
            f"  Ray's tools    . {self.environment} && serve status",
            "",
            self.curl,
            "",
            f"Recommended for user {self.user_id}:",
            *(f"  {place:2}. {title}" for place, title in enumerate(self.titles, 1)),
            *(f"\nadvice: {line}" for line in self.advice),
        ]


@dataclass(frozen=True)
class Launch:
    """One ``recpool up``.

    Attributes:
        settings: what ``profile`` and ``overrides`` give; the cluster reads these two again by itself.
    """

    settings: Settings
    profile: str
    overrides: dict[str, Any]
    report: Report

    @property
    def cluster(self) -> Cluster:
        return Cluster(self.settings.home)

    def up(self) -> UpReport:
        """Make the service answer: data, release, store, Ray, Serve; each step only when it is missing.

        Raises:
            OfflineError: the plan does not fit, data or training failed, or the release is damaged.
            Unavailable: Ray or Serve did not come up; what had started is ended again.
            Conflict: another command is at it, or the port is taken.
        """
        with self.cluster.lock("up"):
            record = self._running()
            plan = self._plan(record)
            ensure_dataset(self.settings, self.report)
            version = ensure_release(self.settings, self.report)
            ensure_store(self.settings, self.report)
            if record is None or why_not_ready(record.http, version) is not None:
                # While what runs still serves: a damaged release or a taken port must not be what ends it.
                open_releases(self.settings).verify(version)
                record = record or self._start()
                self._roll_out(record, plan, version)
        return self._describe(record, version)

    def _plan(self, record: ClusterRecord | None) -> Plan:
        """The plan for what runs, or for the cluster that this machine would be; refused if it has no room for it."""
        device_resources(self.settings)  # a device that is not there is refused before anything is ended or started
        resources = (record.resources if record else None) or machine_resources()
        plan = make_plan(self.settings, resources)
        plan.require_room(resources)
        return plan

    def _running(self) -> ClusterRecord | None:
        """The record of a live cluster with these settings, or None."""
        record = self.cluster.record()
        current = record is not None and record.settings == settings_digest(self.settings)
        return record if current and self.cluster.is_alive() else None

    def _start(self) -> ClusterRecord:
        """Start Ray in place of whatever is left of a cluster, or of one with other settings."""
        host, port = self.settings.serving.host, self.settings.serving.port
        if not is_free(port, host) and not self.cluster.holds(port):
            raise Conflict(f"{host}:{port} is held by another program; choose another: RECPOOL_SERVING__PORT=8001")
        self.cluster.stop()
        self.report("starting Ray", 0.0)
        try:
            record = self.cluster.start(self.settings)
        except BaseException:  # also an interrupt: a start that did not finish leaves nothing running
            self.cluster.stop()
            raise
        self.report("starting Ray", 1.0)
        return record

    def _roll_out(self, record: ClusterRecord, plan: Plan, version: str) -> None:
        """Serve a release; a cluster that does not come to answer is ended, so the next try starts clean."""
        token = self.cluster.token()
        was_serving = why_not_ready(record.http) is None
        self.report("starting Serve", 0.0)
        try:
            deploy(record, token, serve_config(self.profile, self.settings, plan, version, self.overrides))
            self.report("starting Serve", 1.0)
            self.report("waiting until the service is ready", 0.0)
            await_ready(record, token, READY_TIMEOUT_S, version)
        except BaseException:
            if not was_serving:  # a running release that a new one failed to replace keeps serving
                self.cluster.stop()
            raise
        self.report("waiting until the service is ready", 1.0)

    def _describe(self, record: ClusterRecord, version: str) -> UpReport:
        """Ask the service for one user's slate."""
        users = Dataset.load(self.settings.dataset_folder).users.column(USER_ID)
        body = {"user_id": users[0].as_py() if len(users) else "new-user", "k": 10}
        url = f"{record.http}/v1/recommend"
        reply = request("POST", url, 30.0, json={**body, "dry_run": True})
        if reply.status_code != 200:
            raise Unavailable(f"{url} answers {reply.status_code}: {reply.text[:500]}")
        quoted = shlex.quote(orjson.dumps(body).decode())
        return UpReport(
            address=record.http,
            dashboard=record.dashboard,
            release=version,
            environment=str(self.cluster.folders.shell),
            user_id=body["user_id"],
            titles=[title_of(item) for item in reply.json()["items"]],
            curl=f"curl -s {url} -H 'content-type: application/json' -d {quoted}",
            advice=advice(),
        )


def down(settings: Settings) -> int:
    """End everything ``up`` started; returns how many processes there were."""
    cluster = Cluster(settings.home)
    with cluster.lock("down"):
        return cluster.stop()


def watch(settings: Settings) -> None:
    """Stay in the foreground until SIGINT or SIGTERM, then bring the service down.

    Raises Unavailable when Ray ends by itself.
    """
    cluster, asked = Cluster(settings.home), threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: asked.set())
    while not asked.wait(WATCH_PERIOD_S):
        if not cluster.is_alive():
            down(settings)
            raise Unavailable(f"Ray ended by itself; its logs are in {cluster.folders.ray}")
    down(settings)


def title_of(item: dict[str, Any]) -> str:
    """An item's title where the catalogue has one, else its id."""
    return str(item.get("metadata", {}).get("title") or item["id"])
