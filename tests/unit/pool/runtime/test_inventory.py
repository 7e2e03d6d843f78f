"""Devices come from the settings, else from the nodes; what a node lacks is refused by the name of the field."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from configs.errors import ConfigError
from configs.pool_settings import PoolSettings
from configs.settings import build_settings
from pool.runtime import discovery
from pool.runtime.inventory import node_devices, sites_of
from pool.runtime.messages import AcceleratorFound, NodeFound, RayNode

HEAD = RayNode("id-1", "10.0.0.1", True, True, {})
WORKER = RayNode("id-2", "10.0.0.2", True, False, {})
FOUND = NodeFound((0, 1), 100, (), 0)
WITH_GPU = NodeFound((0, 1, 2), 100, (AcceleratorFound("gpu", 0, 80),), 0)


def stated(*devices: dict) -> tuple:
    return PoolSettings.model_validate({"devices": devices}).devices


def test_without_settings_a_node_is_its_cores_and_its_accelerators():
    sites = sites_of((), [HEAD, WORKER], {"id-1": FOUND, "id-2": WITH_GPU})
    assert {
        key: (site.node_id, site.device.cores, site.device.memory_bytes, site.index) for key, site in sites.items()
    } == {
        "cpu-10.0.0.1": ("id-1", (0, 1), 100, None),
        "cpu-10.0.0.2": ("id-2", (0, 1, 2), 100, None),
        "gpu-10.0.0.2-0": ("id-2", (), 80, 0),
    }
    assert not any(site.device.emulated for site in sites.values())


def test_a_node_that_died_or_does_not_answer_has_no_devices():
    dead = RayNode("id-2", "10.0.0.2", False, False, {})
    assert set(sites_of((), [HEAD, dead], {"id-1": FOUND, "id-2": FOUND})) == {"cpu-10.0.0.1"}
    assert sites_of((), [HEAD], {}) == {}


def test_devices_of_the_settings_are_on_the_head_node_or_the_one_they_name():
    devices = stated(
        {"id": "a", "kind": "npu", "emulated": True, "cores": [1], "memory_bytes": 5, "rack": "r", "zone": "z"},
        {"id": "b", "kind": "gpu", "index": 0, "memory_bytes": 7, "node": "10.0.0.2", "price_per_hour": 2},
        {"id": "c", "kind": "cpu", "cores": [0], "memory_bytes": 7, "node": "10.0.0.3"},
    )
    sites = sites_of(devices, [WORKER, HEAD], {"id-1": FOUND, "id-2": WITH_GPU})
    assert set(sites) == {"a", "b"}, "the node of c has not come yet"
    a, b = sites["a"].device, sites["b"].device
    assert (a.label, a.cores, a.topology.rack, a.topology.zone, sites["a"].node_id) == (
        "npu (emulated)",
        (1,),
        "r",
        "z",
        "id-1",
    )
    assert (b.label, b.price_per_hour, sites["b"].index, sites["b"].node_id) == ("gpu", 2, 0, "id-2")


@pytest.mark.parametrize(
    ("device", "said"),
    [
        (
            {"id": "a", "kind": "cpu", "cores": [1, 7, 9], "memory_bytes": 1},
            r"pool.devices.0.cores: a has cores \[7, 9\]",
        ),
        (
            {"id": "a", "kind": "gpu", "index": 3, "memory_bytes": 1},
            "pool.devices.0.index: a is gpu 3, its node has none",
        ),
    ],
)
def test_what_the_node_lacks_is_refused(device, said):
    with pytest.raises(ConfigError, match=said):
        sites_of(stated(device), [HEAD], {"id-1": FOUND})


def test_ray_is_told_of_each_device():
    device = {"id": "a", "kind": "gpu", "emulated": True, "cores": [1], "memory_bytes": 5}
    assert node_devices(stated(device), HEAD, FOUND) == {"device/a": 1.0}


@pytest.mark.parametrize(
    ("devices", "said"),
    [
        ([("a", [0]), ("a", [1])], "devices.1.id: 'a' is that of devices.0 too"),
        ([("a", [0, 1]), ("b", [1, 2])], "devices.1.cores: core 1 is one of devices.0 too"),
        ([("a b", [0])], "pool.devices.0.id"),
        ([("a", [])], "pool.devices.0: .*cores"),
        ([("a", [-1])], "pool.devices.0.cores.0"),
    ],
)
def test_settings_that_contradict_themselves_are_refused_by_field(devices, said):
    tree = [{"id": name, "kind": "cpu", "cores": cores, "memory_bytes": 1} for name, cores in devices]
    with pytest.raises(ConfigError, match=said):
        build_settings({"pool": {"devices": tree}})


def test_the_same_core_of_two_nodes_is_no_contradiction():
    tree = [{"id": f"d{n}", "kind": "cpu", "cores": [0], "memory_bytes": 1, "node": f"n{n}"} for n in range(2)]
    assert len(build_settings({"pool": {"devices": tree}}).pool.devices) == 2


def nvml(count: int = 2):
    return SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetCount=lambda: count,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetMemoryInfo=lambda handle: SimpleNamespace(total=1_000 + handle),
    )


def torch_npu():
    properties = SimpleNamespace(total_memory=64)
    return SimpleNamespace(npu=SimpleNamespace(device_count=lambda: 1, get_device_properties=lambda index: properties))


def importer(**modules):
    def find(name: str):
        if name not in modules:
            raise ImportError(name)
        return modules[name]

    return find


def test_accelerators_are_those_whose_libraries_can_be_imported():
    assert discovery.accelerators(importer()) == ()
    both = discovery.accelerators(importer(pynvml=nvml(), torch_npu=torch_npu()))
    assert [(each.kind, each.index, each.memory_bytes) for each in both] == [
        ("gpu", 0, 1_000),
        ("gpu", 1, 1_001),
        ("npu", 0, 64),
    ]


def test_a_driver_that_fails_hides_no_other_device():
    def fail() -> None:
        raise RuntimeError("driver not loaded")

    broken = nvml()
    broken.nvmlInit = fail
    assert [each.kind for each in discovery.accelerators(importer(pynvml=broken, torch_npu=torch_npu()))] == ["npu"]
