"""What starting a pool needs of this machine: its devices as Ray resources, and a folder of gates that is ours."""

from __future__ import annotations

import os
from types import SimpleNamespace

import pytest

from configs.errors import ConfigError
from configs.settings import build_settings, load_settings
from deployments import cluster, gates, pool
from deployments.gates import gate_folder, remove_gates
from deployments.machine import device_resources
from deployments.pool import start_pool


def settings_of(home, **runtime):
    devices = [{"id": "gpu-0", "kind": "gpu", "emulated": True, "cores": [0], "memory_bytes": 1}]
    return build_settings({"home": str(home), "pool": {"devices": devices, "runtime": {"enabled": True, **runtime}}})


@pytest.fixture(autouse=True)
def _cores(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0, 1})


def test_without_a_pool_ray_is_told_of_no_devices(tmp_path):
    assert device_resources(settings_of(tmp_path, enabled=False)) == {}


def test_each_device_is_a_resource_that_ray_starts_with(tmp_path):
    resources = device_resources(settings_of(tmp_path))
    assert resources == {"device/gpu-0": 1.0}
    ports = SimpleNamespace(gcs=1, dashboard=2, agent=3, client=4)
    folders = SimpleNamespace(ray=tmp_path)
    command = cluster._start_command(folders, ports, {"CPU": 2.0, "GPU": 0.0, "NPU": 0.0, **resources})  # type: ignore
    assert '--resources={"device/gpu-0": 1.0}' in command


def test_the_profile_of_two_emulated_devices_fits_a_machine_of_two_cores():
    assert set(device_resources(load_settings("pool"))) == {"device/gpu-0", "device/gpu-1"}


def test_a_device_of_a_core_that_is_not_there_is_refused_by_its_field(tmp_path):
    device = {"id": "gpu-0", "kind": "gpu", "emulated": True, "cores": [0, 9], "memory_bytes": 1}
    settings = build_settings({"pool": {"devices": [device], "runtime": {"enabled": True}}})
    with pytest.raises(ConfigError, match=r"pool.devices.0.cores: gpu-0 has cores \[9\]"):
        device_resources(settings)


def test_gates_lie_in_memory_in_a_folder_of_this_user_alone(tmp_path, monkeypatch):
    monkeypatch.setattr(gates, "SHARED_MEMORY", tmp_path / "shm")
    assert gate_folder(settings_of(tmp_path / "home")) == tmp_path / "home" / "run" / "gate"
    (tmp_path / "shm").mkdir()
    folder = gate_folder(settings_of(tmp_path / "home"))
    assert folder.parent == tmp_path / "shm" and folder.stat().st_mode & 0o77 == 0
    assert gate_folder(settings_of(tmp_path / "home")) == folder
    assert gate_folder(settings_of(tmp_path / "other")) != folder
    folder.chmod(0o777)
    with pytest.raises(ConfigError, match="pool.runtime.gate_folder"):
        gate_folder(settings_of(tmp_path / "home"))
    assert gate_folder(settings_of(tmp_path / "home", gate_folder=str(tmp_path / "g"))) == tmp_path / "g"


def test_gates_are_removed_with_their_folder_and_those_of_others_are_not(tmp_path, monkeypatch):
    monkeypatch.setattr(gates, "SHARED_MEMORY", tmp_path)
    mine, others = (gate_folder(settings_of(tmp_path / name)) for name in ("home", "other"))
    stated = gate_folder(settings_of(tmp_path / "home", gate_folder=str(tmp_path / "g")))
    stated.mkdir()
    for folder in (mine, others, stated):
        (folder / "gpu-0.gate").write_bytes(b"")
    remove_gates(tmp_path / "home")
    assert not mine.exists()
    assert (others / "gpu-0.gate").exists() and (stated / "gpu-0.gate").exists()
    remove_gates(tmp_path / "home")
    others.chmod(0o777)
    remove_gates(tmp_path / "other")
    assert others.exists(), "somebody else may have made it"


def test_a_controller_that_cannot_be_started_does_not_keep_the_service_from_it(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr(pool.ray, "is_initialized", lambda: True)

    def fail(settings):
        raise RuntimeError("no room")

    monkeypatch.setattr(pool, "start_controller", fail)
    start_pool(settings_of(tmp_path))
    assert "serving goes on without" in caplog.text
    caplog.clear()
    start_pool(settings_of(tmp_path, enabled=False))
    assert not caplog.text
