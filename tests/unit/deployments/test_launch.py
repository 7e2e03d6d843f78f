"""`recpool up` with a service that runs already: what cannot replace it does not end it."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field, replace
from types import SimpleNamespace

import pytest

from configs.errors import ArtifactError, ConfigError, Conflict
from configs.settings import build_settings
from deployments import launch
from deployments.cluster import ClusterRecord, settings_digest
from deployments.launch import Launch
from pool.repository import ReleaseRepository

RECORD = ClusterRecord(1, 0.0, "b", "a", "d", "h", "digest of other settings")


@dataclass
class FakeCluster:
    """A running cluster that notes what is done to it; ``ports`` are those its processes listen on."""

    running: ClusterRecord | None = RECORD
    ports: set[int] = field(default_factory=set)
    done: list[str] = field(default_factory=list)
    lock = staticmethod(contextlib.nullcontext)

    def record(self):
        return self.running

    def is_alive(self) -> bool:
        return self.running is not None

    def holds(self, port: int) -> bool:
        return port in self.ports

    def stop(self) -> int:
        self.done.append("stop")
        return 1

    def start(self, settings) -> ClusterRecord:
        self.done.append("start")
        return replace(RECORD, settings=settings_digest(settings))


@pytest.fixture
def settings(tmp_path):
    return build_settings({"home": tmp_path})


@pytest.fixture
def version(settings) -> str:
    describe = {"dataset": "d", "recipe": "quick", "items": 1, "users": 1, "objectives": ("engage",)}
    repository = ReleaseRepository(settings.releases_folder)
    with repository.draft(describe) as draft:
        (draft.folder / "items.parquet").write_bytes(b"items")
    return draft.version


@pytest.fixture
def cluster(monkeypatch, version) -> FakeCluster:
    """The cluster that `up` finds; data is there, the port is free, and whatever is rolled out answers."""
    cluster = FakeCluster()
    monkeypatch.setattr(launch, "Cluster", lambda home: cluster)
    for step in ("ensure_dataset", "ensure_store"):
        monkeypatch.setattr(launch, step, lambda *_: None)
    monkeypatch.setattr(launch, "ensure_release", lambda *_: version)
    monkeypatch.setattr(launch, "is_free", lambda *_: True)
    monkeypatch.setattr(launch, "why_not_ready", lambda *_: "serves another release")
    monkeypatch.setattr(Launch, "_roll_out", lambda self, record, plan, version: cluster.done.append("roll out"))
    monkeypatch.setattr(Launch, "_describe", lambda self, record, version: SimpleNamespace(release=version))
    return cluster


@pytest.fixture
def up(settings):
    return Launch(settings, "default", {}, lambda stage, fraction: None).up


def test_other_settings_replace_what_runs(cluster, up, version):
    assert up().release == version
    assert cluster.done == ["stop", "start", "roll out"]


def test_a_damaged_release_is_refused_before_anything_is_ended(cluster, up, settings, version):
    (settings.releases_folder / version / "items.parquet").write_bytes(b"other")
    with pytest.raises(ArtifactError, match=r"items\.parquet"):
        up()
    assert cluster.done == []


def test_a_taken_port_is_refused_before_anything_is_ended(cluster, up, monkeypatch):
    monkeypatch.setattr(launch, "is_free", lambda *_: False)
    with pytest.raises(Conflict, match="RECPOOL_SERVING__PORT"):
        up()
    assert cluster.done == []


def test_a_port_that_the_cluster_itself_holds_is_not_taken(cluster, up, settings, monkeypatch):
    monkeypatch.setattr(launch, "is_free", lambda *_: False)
    cluster.ports = {settings.serving.port}
    up()
    assert cluster.done == ["stop", "start", "roll out"]


def test_the_same_settings_and_another_release_restart_nothing(cluster, up, settings):
    cluster.running = replace(RECORD, settings=settings_digest(settings))
    up()
    assert cluster.done == ["roll out"]


@pytest.mark.parametrize("plan", [{"tier": "npu"}, {"replicas": 1000, "share_milli": 1000}])
def test_a_plan_that_the_machine_has_no_room_for_is_refused_before_anything_is_ended(cluster, settings, plan):
    wanted = build_settings({"home": settings.home, "plan": {"gateway": plan}})
    with pytest.raises(ConfigError, match=r"plan\.gateway"):
        Launch(wanted, "default", {}, lambda stage, fraction: None).up()
    assert cluster.done == []


def test_a_plan_is_made_for_the_cluster_that_runs_rather_than_for_the_machine(cluster, up, settings, monkeypatch):
    cluster.running = replace(RECORD, settings=settings_digest(settings), resources={"CPU": 1.0})
    monkeypatch.setattr(launch, "machine_resources", lambda: pytest.fail("the machine was asked"))
    up()
    assert cluster.done == ["roll out"]
